/* batch.h owns texts that are made at the same time: continuous batching, and drafts that one step verifies.
 *
 * Every text in work adds its part to a step: its one new token, or, one text at a time, a piece of its prompt of up to
 * `piece` tokens. A text that ends leaves its slot to one that waits. Parts change no bit of each other (decoder.h),
 * so a text is what it is alone.
 *
 * With a draft model, a small one with the same tokens, `ahead` tokens are drafted greedily behind each text, at each
 * of them `width` - 1 more as leaves, and all of them are nodes of a tree that the model sees in one step
 * (api/calls/cache.h). From the root on the token that the model chooses is looked for among the nodes' children;
 * what is found need not be computed again. The text is what it is without: a draft only decides how many tokens a
 * step makes. Sources: Yu et al. 2022 (Orca, OSDI); Leviathan et al. 2022, arXiv 2211.17192; trees: Miao et al. 2023,
 * arXiv 2305.09781. */
#ifndef EXAMPLES_BATCH_H
#define EXAMPLES_BATCH_H

#include "decoder.h"
#include "sampling.h"

typedef struct batch_text {
  int64_t *tokens; /* the prompt, then what is made; room for prompt + limit */
  int64_t prompt, limit, len;
  uint64_t seed;
  int done;
  int64_t slot; /* while it is in work */
} batch_text;

typedef struct batch {
  decoder *model, *draft; /* open, with as many slots; draft may be null */
  sampler *choice;
  int64_t piece, ahead, width;
  int64_t first_mark; /* tokens from there on end a text, too */
  batch_text *texts;
  int64_t count;
  void (*made)(void *user, int64_t text,
               int64_t token); /* null, or told of each token; -1: the end */
  void *user;
  float *all; /* null, or every logit: of text 0 alone, row t that of its token t */
  /* out: tokens of prompts, seconds of steps that have some; tokens that the other steps made, these, their seconds */
  int64_t prompt_tokens, made_later, steps;
  double prompt_seconds, step_seconds;
  int64_t drafted, accepted, verified; /* tokens of drafts, those that were right, trees */
  int64_t seen;                        /* rows of all */
  double (*now)(void);
  const char *error;
  /* inside */
  int64_t *active, actives, nodes_room, made_tokens;
  decoder_part *parts;
  int64_t *nodes;      /* [slots][nodes_room] tokens of trees */
  int32_t *parents;    /* likewise */
  int64_t *node_count; /* [slots] */
  float *logits;
} batch;

/* The most nodes of a tree: the token that is not in the cache yet, and the drafted ones. */
static int64_t batch_nodes(int64_t ahead, int64_t width) { return 1 + ahead * width; }

static int batch_end_(const batch *b, int64_t token) {
  const model_config *c = &b->model->config;
  for (int i = 0; i < c->eos_count; i++)
    if (token == c->eos[i]) return 1;
  return token >= b->first_mark;
}

/* A token joins a text, or ends it; 0 when the logits are not finite. */
static int batch_take_(batch *b, int64_t index, float *logits, int64_t *token) {
  batch_text *t = &b->texts[index];
  *token = sampler_choose(b->choice, logits, t->tokens, t->len, t->seed, t->len - t->prompt);
  if (*token < 0) {
    b->error = "the logits are not finite: are these weights of a model?";
    return 0;
  }
  if (batch_end_(b, *token)) {
    t->done = 1;
  } else {
    t->tokens[t->len++] = *token;
    b->made_tokens++;
    if (b->made) b->made(b->user, index, *token);
    t->done = t->len - t->prompt == t->limit;
  }
  if (t->done && b->made) b->made(b->user, index, -1);
  return 1;
}

static int batch_must_(batch *b, const char *error) {
  if (error) b->error = error;
  return !error;
}

/* ---- drafts */

/* The `width` likeliest tokens, the first one first. */
static void batch_likeliest_(const float *logits, int64_t count, int64_t width, int64_t *tokens) {
  for (int64_t k = 0; k < width; k++) {
    int64_t best = -1;
    for (int64_t i = 0; i < count; i++) {
      int taken = 0;
      for (int64_t j = 0; j < k; j++) taken |= tokens[j] == i;
      if (!taken && (best < 0 || logits[i] > logits[best])) best = i;
    }
    tokens[k] = best;
  }
}

/* How far a text may be drafted: no further than it may go. */
static int64_t batch_ahead_(const batch *b, const batch_text *t) {
  const int64_t left = t->limit - (t->len - t->prompt) - 1;
  return b->ahead < left ? b->ahead : left > 0 ? left : 0;
}

static int64_t batch_width_(const batch *b, const batch_text *t) {
  /* a window counts tokens as they are stored: only a chain is stored as it will stay */
  const int64_t width = decoder_windowed(b->model, t->len + b->nodes_room) ? 1 : b->width;
  return width < b->model->config.vocabulary ? width : 1;
}

/* Trees of all texts that wait for one token, into b->nodes and b->parents. */
static int batch_draft_(batch *b) {
  decoder *d = b->draft;
  for (int64_t depth = 0; depth < b->ahead; depth++) {
    int64_t count = 0;
    for (int64_t i = 0; i < b->actives; i++) {
      batch_text *t = &b->texts[b->active[i]];
      const int64_t s = t->slot, have = d->len[s];
      if (b->model->len[s] != t->len - 1 || depth >= batch_ahead_(b, t)) continue;
      /* first what the draft has not seen of the text, then the token drafted last */
      b->parts[count++] =
          (decoder_part){.slot = s,
                         .n = depth ? 1 : t->len - have,
                         .rows = 1,
                         .tokens = depth ? b->nodes + s * b->nodes_room + depth : t->tokens + have};
    }
    if (!count) return 1;
    if (!batch_must_(b, decoder_step(d, b->parts, count, b->logits))) return 0;
    for (int64_t i = 0; i < count; i++) {
      const int64_t s = b->parts[i].slot;
      int64_t *nodes = b->nodes + s * b->nodes_room, likely[64];
      int32_t *parents = b->parents + s * b->nodes_room;
      const batch_text *t = NULL;
      for (int64_t j = 0; j < b->actives; j++)
        if (b->texts[b->active[j]].slot == s) t = &b->texts[b->active[j]];
      const int64_t ahead = batch_ahead_(b, t), width = batch_width_(b, t);
      batch_likeliest_(b->logits + i * d->out.stride, d->config.vocabulary, width, likely);
      nodes[depth + 1] = likely[0]; /* the chain comes first, its siblings behind it */
      parents[depth + 1] = (int32_t)depth;
      for (int64_t k = 1; k < width; k++) {
        const int64_t at = ahead + depth * (width - 1) + k;
        nodes[at] = likely[k];
        parents[at] = (int32_t)depth;
      }
      b->node_count[s] = 1 + ahead * width;
    }
  }
  return 1;
}

/* The model has seen the tree of a text: its choices, node by node. rows: the nodes' logits. */
static int batch_verify_(batch *b, int64_t index, float *rows) {
  batch_text *t = &b->texts[index];
  const int64_t s = t->slot, n = b->node_count[s], before = t->len - 1;
  const int64_t *nodes = b->nodes + s * b->nodes_room;
  const int32_t *parents = b->parents + s * b->nodes_room;
  int64_t node = 0, chain = 0, token;
  b->verified++;
  b->drafted += n - 1;
  for (;;) {
    if (!batch_take_(b, index, rows + node * b->model->out.stride, &token)) return 0;
    if (t->done) return 1;
    int64_t child = -1;
    for (int64_t i = node + 1; i < n && child < 0; i++)
      if (parents[i] == node && nodes[i] == token) child = i;
    if (child < 0) break;
    b->accepted++;
    if (child == node + 1 && chain == node) chain = child;
    node = child;
  }
  if (b->draft->len[s] > before + 1 + chain &&
      !batch_must_(b, decoder_back(b->draft, s, before + 1 + chain)))
    return 0;
  return batch_must_(b, decoder_accept(b->model, s, parents, n, node));
}

/* ---- steps */

/* Texts that wait get free slots; node_count says meanwhile which ones are taken. */
static void batch_admit_(batch *b, int64_t *next) {
  const int64_t slots = b->model->slots;
  if (*next == b->count || b->actives == slots) return;
  for (int64_t s = 0; s < slots; s++) b->node_count[s] = 0;
  for (int64_t i = 0; i < b->actives; i++) b->node_count[b->texts[b->active[i]].slot] = 1;
  for (int64_t s = 0; s < slots && *next < b->count; s++) {
    if (b->node_count[s]) continue;
    b->texts[*next].slot = s;
    b->active[b->actives++] = (*next)++;
  }
}

/* Parts of a step: texts with one token first, which are one call then, one piece of a prompt last. */
static int64_t batch_parts_(batch *b, int64_t *owner, int *piece) {
  int64_t count = 0;
  *piece = 0;
  for (int pass = 0; pass < 3; pass++)
    for (int64_t i = 0; i < b->actives; i++) {
      batch_text *t = &b->texts[b->active[i]];
      const int64_t s = t->slot, left = t->len - b->model->len[s];
      const int64_t nodes = left == 1 ? b->node_count[s] : 0;
      if (pass != (left > 1 ? 2 : nodes > 1 ? 1 : 0)) continue;
      if (pass == 2 && *piece) continue;
      *piece |= pass == 2;
      decoder_part *p = &b->parts[count];
      *p = (decoder_part){.slot = s, .n = left, .rows = 1, .tokens = t->tokens + t->len - left};
      owner[count++] = b->active[i];
      if (pass == 1) {
        p->n = p->rows = nodes;
        p->tokens = b->nodes + s * b->nodes_room;
        p->parent = b->parents + s * b->nodes_room;
      } else if (pass == 2 && left > b->piece) {
        p->n = b->piece;
        p->rows = 0;
      }
      if (b->all) p->rows = p->n;
    }
  return count;
}

static int batch_step_(batch *b, int64_t *owner) {
  decoder *m = b->model;
  int piece;
  for (int64_t i = 0; i < b->actives; i++) {
    const batch_text *t = &b->texts[b->active[i]];
    b->node_count[t->slot] = 1;
    b->nodes[t->slot * b->nodes_room] = t->tokens[t->len - 1];
    b->parents[t->slot * b->nodes_room] = -1;
  }
  const double begin = b->now();
  const int64_t made = b->made_tokens;
  if (b->draft && !batch_draft_(b)) return 0;
  const int64_t count = batch_parts_(b, owner, &piece);
  if (!batch_must_(b, decoder_step(m, b->parts, count, b->logits))) return 0;
  float *row = b->logits;
  for (int64_t i = 0; i < count; i++) {
    const decoder_part p = b->parts[i];
    batch_text *t = &b->texts[owner[i]];
    int64_t token;
    if (b->all) b->seen = m->len[p.slot];
    if (b->all)
      memcpy(b->all + (m->len[p.slot] - p.n) * m->out.stride, row,
             (size_t)(p.n * m->out.stride) * sizeof *row);
    if (p.parent) {
      if (!batch_verify_(b, owner[i], row)) return 0;
    } else if (m->len[p.slot] == t->len) { /* all of it is seen: a token follows */
      if (!batch_take_(b, owner[i], row + (p.rows - 1) * m->out.stride, &token)) return 0;
    }
    row += p.rows * m->out.stride;
    const int prompt = piece && i == count - 1;
    if (prompt) b->prompt_tokens += p.n;
    /* the draft reads prompts in the same pieces */
    if (b->draft && prompt && !t->done) {
      decoder_part q = p;
      q.rows = 0;
      if (!batch_must_(b, decoder_step(b->draft, &q, 1, NULL))) return 0;
    }
  }
  const double seconds = b->now() - begin;
  *(piece ? &b->prompt_seconds : &b->step_seconds) += seconds;
  b->steps += !piece;
  b->made_later += piece ? 0 : b->made_tokens - made;
  return 1;
}

static int batch_loop_(batch *b, int64_t *owner) {
  int64_t next = 0;
  for (;;) {
    batch_admit_(b, &next);
    if (!b->actives) return 1;
    if (!batch_step_(b, owner)) return 0;
    int64_t left = 0;
    for (int64_t i = 0; i < b->actives; i++) {
      const batch_text *t = &b->texts[b->active[i]];
      if (!t->done) {
        b->active[left++] = b->active[i];
      } else if (!batch_must_(b, decoder_back(b->model, t->slot, 0)) ||
                 (b->draft && !batch_must_(b, decoder_back(b->draft, t->slot, 0)))) {
        return 0;
      }
    }
    b->actives = left;
  }
}

/* Makes all texts; null, or a sentence. */
static const char *batch_run(batch *b) {
  const int64_t slots = b->model->slots;
  const int64_t stride = b->draft && b->draft->out.stride > b->model->out.stride
                             ? b->draft->out.stride
                             : b->model->out.stride;
  b->nodes_room = b->draft ? batch_nodes(b->ahead, b->width) : 1;
  const int64_t rows = b->all ? b->piece + slots : slots * b->nodes_room + 1;
  b->active = calloc((size_t)slots, sizeof *b->active);
  b->parts = calloc((size_t)slots, sizeof *b->parts);
  b->nodes = calloc((size_t)(slots * b->nodes_room), sizeof *b->nodes);
  b->parents = calloc((size_t)(slots * b->nodes_room), sizeof *b->parents);
  b->node_count = calloc((size_t)slots, sizeof *b->node_count);
  b->logits = calloc((size_t)rows, (size_t)stride * sizeof *b->logits);
  int64_t *owner = calloc((size_t)slots, sizeof *owner);
  b->error = NULL;
  b->actives = 0;
  if (!b->active || !b->parts || !b->nodes || !b->parents || !b->node_count || !b->logits || !owner)
    b->error = "out of memory";
  else
    batch_loop_(b, owner);
  free(b->active), free(b->parts), free(b->nodes), free(b->parents);
  free(b->node_count), free(b->logits), free(owner);
  return b->error;
}

#endif
