/* trainer_files.h owns what of a training is in files: the model, as generate.c and transformers read it, and the
 * checkpoint, with which a training goes on as if it had not been interrupted. A file is written beside the old one and
 * takes its place when it is whole. */
#ifndef EXAMPLES_TRAINER_FILES_H
#define EXAMPLES_TRAINER_FILES_H

#include "model_files.h"
#include "trainer.h"

/* A sentence, or null, of a file that was to be made. */
static int trainer_wrote_(work *w, const char *path, const char *error) {
  return !error || work_fail(w, "%s: %s", path, error);
}

static int trainer_write_(work *w, const char *folder, const char *name,
                          const safetensors_part *parts, int count) {
  char path[4096], fresh[4096 + 8];
  if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, name) >= sizeof path)
    return work_fail(w, "the folder's name is too long");
  snprintf(fresh, sizeof fresh, "%s.new", path);
  const char *error = safetensors_write(fresh, parts, count);
  if (!error && rename(fresh, path)) error = strerror(errno);
  return trainer_wrote_(w, path, error);
}

/* ---- the model */

/* config.json of a model to begin with: a Llama whose tokens are bytes. */
static int trainer_new_config(work *w, const char *folder, int64_t width, int64_t layers,
                              int64_t heads, int64_t kv_heads, int64_t hidden, int64_t context) {
  char path[4096];
  snprintf(path, sizeof path, "%s/config.json", folder);
  FILE *file = fopen(path, "wb");
  if (!file) return trainer_wrote_(w, path, strerror(errno));
  fprintf(file,
          "{\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"], \"vocab_size\": "
          "256,\n"
          " \"hidden_size\": %" PRId64 ", \"num_hidden_layers\": %" PRId64
          ", \"num_attention_heads\": %" PRId64 ", \"num_key_value_heads\": %" PRId64
          ",\n \"head_dim\": %" PRId64 ", \"intermediate_size\": %" PRId64
          ", \"max_position_embeddings\": %" PRId64
          ",\n \"hidden_act\": \"silu\", \"rms_norm_eps\": 1e-6, \"rope_theta\": 10000.0, "
          "\"tie_word_embeddings\": true,\n \"attention_bias\": false, \"mlp_bias\": false, "
          "\"bos_token_id\": null, \"eos_token_id\": null, \"torch_dtype\": \"float32\"}\n",
          width, layers, heads, kv_heads, width / heads, hidden, context);
  const int failed = ferror(file);
  return trainer_wrote_(w, path, fclose(file) || failed ? "it could not be written" : NULL);
}

/* The same bytes in another folder; nothing where there is no such file. */
static int trainer_copy(work *w, const char *from, const char *to, const char *name) {
  char path[4096], piece[4096];
  size_t n;
  snprintf(path, sizeof path, "%s/%s", from, name);
  FILE *in = fopen(path, "rb");
  if (!in) return 1;
  snprintf(path, sizeof path, "%s/%s", to, name);
  FILE *out = fopen(path, "wb");
  while (out && (n = fread(piece, 1, sizeof piece, in)) > 0) fwrite(piece, 1, n, out);
  const int failed = !out || ferror(in) || ferror(out);
  fclose(in);
  return trainer_wrote_(w, path, (out && fclose(out)) || failed ? "it could not be copied" : NULL);
}

/* Whether the model has a matrix of its own for logits: config.json need not say so. */
static int trainer_has_head(model_files *f) {
  safetensors *in;
  return model_files_find(f, "lm_head.weight", &in) != NULL;
}

static int trainer_load(trainer *t, model_files *f) {
  float *to = t->weights;
  for (int i = 0; i < t->parts_count; i++) {
    const safetensors_part *part = &t->parts[i];
    const int64_t rows = part->rows ? part->rows : 1;
    safetensor *from = model_files_fetch(&t->w, f, part->name, part->rows, part->columns);
    if (!from) return 0;
    const attn_tensor matrix = attn_bhtd(from->data, from->dtype, 1, 1, rows, part->columns);
    for (int64_t row = 0; row < rows; row++, to += part->columns) safetensors_row(to, matrix, row);
    safetensors_drop(from);
  }
  return model_files_known(&t->w, f);
}

static int trainer_save(trainer *t, const char *folder) {
  return trainer_write_(&t->w, folder, "model.safetensors", t->parts, t->parts_count);
}

/* Gradients under the names of their weights. */
static int trainer_save_gradients(trainer *t, const char *folder) {
  safetensors_part *parts = work_take(&t->w, t->parts_count, sizeof *parts);
  for (int64_t i = 0, at = 0; parts && i < t->parts_count; i++) {
    parts[i] = t->parts[i];
    parts[i].data = t->gradients + at;
    at += (parts[i].rows ? parts[i].rows : 1) * parts[i].columns;
  }
  return parts && trainer_write_(&t->w, folder, "gradients.safetensors", parts, t->parts_count);
}

/* ---- the checkpoint */

enum { TRAINER_SETTINGS = 10 };

/* What a training is besides its model. */
typedef struct trainer_run {
  int64_t step;                       /* how many are done */
  int64_t settings[TRAINER_SETTINGS]; /* what makes it another training if it changes */
  float *learned, *held_out;          /* [steps] losses; NaN = none */
  int64_t steps;
} trainer_run;

static int trainer_checkpoint(trainer *t, const trainer_run *run, const char *folder) {
  int64_t numbers[1 + TRAINER_SETTINGS] = {run->step};
  memcpy(numbers + 1, run->settings, sizeof run->settings);
  const safetensors_part parts[] = {{"run", "I64", 0, 1 + TRAINER_SETTINGS, numbers},
                                    {"weights", "F32", 0, t->numbers, t->weights},
                                    {"mean", "F32", 0, t->numbers, t->mean},
                                    {"square", "F32", 0, t->numbers, t->square},
                                    {"learned", "F32", 0, run->steps, run->learned},
                                    {"held_out", "F32", 0, run->steps, run->held_out}};
  return trainer_write_(&t->w, folder, "checkpoint.safetensors", parts, 6);
}

/* One array of the checkpoint, which must have n numbers. */
static int trainer_array_(const safetensors *st, const char *name, const char *type, int64_t n,
                          void *to) {
  const safetensor *found = safetensors_find(st, name);
  if (!found || strcmp(found->type, type) || found->rank != 1 || found->shape[0] != n) return 0;
  memcpy(to, found->data, (size_t)(found->end - found->begin));
  return 1;
}

/* Reads a checkpoint; names[i] says what settings[i] is. After a sentence weights may be those of the file. */
static int trainer_resume(trainer *t, trainer_run *run, const char *folder,
                          const char *const *names) {
  char path[4096];
  int64_t numbers[1 + TRAINER_SETTINGS];
  safetensors st;
  snprintf(path, sizeof path, "%s/checkpoint.safetensors", folder);
  const char *error = safetensors_read(&st, path);
  if (error) return work_fail(&t->w, "%s: %s", path, error);
  int fine = trainer_array_(&st, "run", "I64", 1 + TRAINER_SETTINGS, numbers);
  for (int i = 0; i < TRAINER_SETTINGS && fine; i++)
    if (numbers[1 + i] != run->settings[i]) {
      safetensors_free(&st);
      return work_fail(&t->w, "%s is of another training: %s", path, names[i]);
    }
  fine = fine && numbers[0] >= 0 && numbers[0] <= run->steps &&
         trainer_array_(&st, "weights", "F32", t->numbers, t->weights) &&
         trainer_array_(&st, "mean", "F32", t->numbers, t->mean) &&
         trainer_array_(&st, "square", "F32", t->numbers, t->square) &&
         trainer_array_(&st, "learned", "F32", run->steps, run->learned) &&
         trainer_array_(&st, "held_out", "F32", run->steps, run->held_out);
  if (fine) run->step = numbers[0];
  safetensors_free(&st);
  return fine || work_fail(&t->w, "%s: it is no checkpoint of this model", path);
}

#endif
