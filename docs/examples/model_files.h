/* model_files.h owns the tensors of a checkpoint: FOLDER/model.safetensors, or the pieces that
 * FOLDER/model.safetensors.index.json names. A tensor's numbers are read when they are asked for, and each tensor must
 * be asked for: one that nobody knows would mean another formula. */
#ifndef EXAMPLES_MODEL_FILES_H
#define EXAMPLES_MODEL_FILES_H

#include "safetensors.h"
#include "work.h"

enum { MODEL_MAX_FILES = 1024 };

typedef struct model_files {
  safetensors *pieces;
  unsigned char **known; /* a flag a tensor */
  char (*names)[256];
  int count;
  const char
      *without_bias[2]; /* parts of names whose biases the configuration leaves out; null: none */
} model_files;

static void model_files_free(model_files *f) {
  for (int i = 0; i < f->count; i++) {
    safetensors_free(&f->pieces[i]);
    free(f->known[i]);
  }
  free(f->pieces);
  free(f->known);
  free(f->names);
  memset(f, 0, sizeof *f);
}

/* Opens one piece more. */
static int files_add_(work *w, model_files *f, const char *folder, const char *name) {
  char path[4096];
  if (!*name || strlen(name) > 255 || strchr(name, '/') || strchr(name, '\\') ||
      !safetensors_plain_(name))
    return work_fail(w, "model.safetensors.index.json names a file that cannot be in the folder");
  for (int i = 0; i < f->count; i++)
    if (!strcmp(f->names[i], name)) return 1;
  if (f->count == MODEL_MAX_FILES) return work_fail(w, "the model has too many files");
  if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, name) >= sizeof path)
    return work_fail(w, "the folder's name is too long");
  safetensors *st = &f->pieces[f->count];
  const char *error = safetensors_open(st, path);
  if (error) return work_fail(w, "%s: %s", name, error);
  snprintf(f->names[f->count], sizeof *f->names, "%s", name);
  f->known[f->count] = calloc(st->count + 1, 1);
  return f->known[f->count++] || work_fail(w, "out of memory");
}

static int files_index_(work *w, model_files *f, const char *folder, const json *root) {
  const json *map = json_get(root, "weight_map");
  if (!map || map->kind != JSON_OBJECT)
    return work_fail(w, "model.safetensors.index.json has no weight_map");
  for (const json *entry = map->first; entry; entry = entry->next)
    if (entry->kind != JSON_STRING || strlen(entry->string) != entry->length)
      return work_fail(w, "model.safetensors.index.json: at byte %zu a file's name must stand",
                       entry->at);
    else if (!files_add_(w, f, folder, entry->string))
      return 0;
  return f->count || work_fail(w, "model.safetensors.index.json names no file");
}

/* Opens all of a model; after an error too model_files_free releases it. */
static int model_files_open(work *w, model_files *f, const char *folder) {
  char path[4096];
  json_document d;
  f->count = 0, f->without_bias[0] = f->without_bias[1] = NULL;
  f->pieces = calloc(MODEL_MAX_FILES, sizeof *f->pieces);
  f->known = calloc(MODEL_MAX_FILES, sizeof *f->known);
  f->names = calloc(MODEL_MAX_FILES, sizeof *f->names);
  if (!f->pieces || !f->known || !f->names) return work_fail(w, "out of memory");
  /* one file counts before pieces, if there are both */
  static const char *const names[] = {"model.safetensors", "model.safetensors.index.json"};
  FILE *there = NULL;
  int which = 0;
  for (; which < 2 && !there; which++) {
    if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, names[which]) >= sizeof path)
      return work_fail(w, "the folder's name is too long");
    there = fopen(path, "rb");
  }
  if (!there || which == 1) {
    if (there) fclose(there);
    return files_add_(w, f, folder, names[0]);
  }
  fclose(there);
  const char *error = json_read(&d, path);
  if (error) return work_fail(w, "model.safetensors.index.json: %s", error);
  const int fine = files_index_(w, f, folder, d.root);
  json_free(&d);
  return fine;
}

/* The tensor of that name and the file it is in, which is known then; null if there is none. */
static safetensor *model_files_find(model_files *f, const char *name, safetensors **in) {
  for (int i = 0; i < f->count; i++) {
    const safetensor *t = safetensors_find(&f->pieces[i], name);
    if (!t) continue;
    f->known[i][t - f->pieces[i].tensors] = 1;
    *in = &f->pieces[i];
    return &f->pieces[i].tensors[t - f->pieces[i].tensors];
  }
  return NULL;
}

/* The numbers of a tensor that must be there with this shape; rows = 0: a vector. Leading extents count as one, as of
 * [experts, inputs, outputs] and of [columns, 1, K]. safetensors_drop releases them. */
static safetensor *model_files_fetch(work *w, model_files *f, const char *name, int64_t rows,
                                     int64_t columns) {
  safetensors *st;
  safetensor *t = model_files_find(f, name, &st);
  if (!t) return work_fail(w, "there is no tensor '%s'", name), NULL;
  for (; rows && t->rank > 2 && t->shape[1] > 0 && t->shape[0] <= rows / t->shape[1]; t->rank--) {
    t->shape[0] *= t->shape[1];
    memmove(t->shape + 1, t->shape + 2, (size_t)(t->rank - 2) * sizeof *t->shape);
  }
  const safetensor *found;
  if (safetensors_expect_(st, &found, name, rows, columns) || safetensors_fetch(st, t))
    return work_fail(w, "%s", st->error), NULL;
  return t;
}

/* A vector of n numbers, as floats that live as long as w; null after an error. */
static float *model_files_vector(work *w, model_files *f, const char *name, int64_t n) {
  float *to = work_floats(w, 1, n);
  safetensor *t = to ? model_files_fetch(w, f, name, 0, n) : NULL;
  if (!t) return NULL;
  safetensors_row(to, attn_bhtd(t->data, t->dtype, 1, 1, 1, n), 0);
  safetensors_drop(t);
  return to;
}

/* Whether all tensors were asked for; buffers that old checkpoints have beside weights count as such. */
static int model_files_known(work *w, const model_files *f) {
  for (int i = 0; i < f->count; i++)
    for (size_t j = 0; j < f->pieces[i].count; j++) {
      const char *name = f->pieces[i].tensors[j].name, *end = strstr(name, "rotary_emb.inv_freq");
      if (!f->known[i][j] && !(end && !strcmp(end, "rotary_emb.inv_freq")))
        return work_fail(w, "tensor '%.*s' is none that this model_type has", SAFETENSORS_SHOWN,
                         name);
    }
  return 1;
}

#endif
