/* families/blocks/experts_gate.h owns which experts a row is sent to, and with which weights. */

/* Floats of scores that an item of rows has about. */
enum { ATTN_EXPERTS_CHOICES_ = 16384 };

typedef struct attn_experts_gate_ {
  const attn_table_ *table;
  const attn_expert_rows_params *p;
  const float *logits, *bias; /* [rows][count]; [count] or null */
  int64_t rows, count, k, groups, group_k;
  float scale;
  int32_t *expert; /* [rows][k] */
  float *weight;   /* [rows][k] */
  int64_t run;     /* rows of an item */
  char *own;       /* of the workers: scores, candidates and room for as many */
  int64_t each, at_list, at_spare;
} attn_experts_gate_;

/* s = softmax(l), which is 0 where no expert is allowed. */
ATTN_FUNC_ void attn_experts_softmax_(const attn_table_ *f, float *s, const float *l, int64_t n) {
  const float by = (float)ATTN_LOG2E_;
  float top = -INFINITY;
  double sum = 0.0;
  for (int64_t e = 0; e < n; e++)
    if (l[e] > top || l[e] != l[e]) top = l[e];
  if (top == -INFINITY) top = 0.0f;
  for (int64_t e = 0; e < n; e++) s[e] = (l[e] - top) * by;
  f->weights(s, s, n, 0.0f, 1.0f);
  for (int64_t e = 0; e < n; e++) sum += (double)s[e];
  for (int64_t e = 0; e < n && sum != 0.0; e++) s[e] = (float)((double)s[e] / sum);
}

/* What experts are chosen by, c or as many l, as candidates of which the larger is the better. */
ATTN_FUNC_ uint64_t attn_experts_candidate_(const attn_experts_gate_ *a, const float *s,
                                            const float *l, int64_t e) {
  if (a->bias) return attn_candidate_(s[e] + a->bias[e], e);
  return attn_candidate_(a->groups > 1 && a->p->group_by == ATTN_EXPERTS_GROUP_SUM ? s[e] : l[e],
                         e);
}

/* The candidates of the best groups, whose number is returned. */
ATTN_FUNC_ int64_t attn_experts_groups_(const attn_experts_gate_ *a, const float *s, const float *l,
                                        uint64_t *list, uint64_t *spare) {
  const int64_t n = a->count / a->groups;
  int64_t count = 0;
  for (int64_t g = 0; g < a->groups; g++) {
    uint64_t best = 0, next = 0;
    for (int64_t e = g * n; e < (g + 1) * n; e++) {
      const uint64_t c = attn_experts_candidate_(a, s, l, e);
      if (c > best)
        next = best, best = c;
      else if (c > next)
        next = c;
    }
    float score = attn_candidate_score_(best);
    if (a->p->group_by == ATTN_EXPERTS_GROUP_SUM) score += attn_candidate_score_(next);
    list[g] = attn_candidate_(score, g);
  }
  if (a->group_k < a->groups) attn_select_(list, a->groups, a->group_k, spare);
  for (int64_t i = 0; i < a->group_k; i++) spare[i] = (uint64_t)attn_candidate_index_(list[i]);
  for (int64_t i = 0; i < a->group_k; i++)
    for (int64_t e = (int64_t)spare[i] * n; e < ((int64_t)spare[i] + 1) * n; e++)
      list[count++] = attn_experts_candidate_(a, s, l, e);
  return count;
}

ATTN_FUNC_ void attn_experts_choose_(const attn_experts_gate_ *a, char *own, int64_t row) {
  const float *l = a->logits + row * a->count;
  float *s = (float *)(void *)own, *weight = a->weight + row * a->k;
  uint64_t *list = (uint64_t *)(void *)(own + a->at_list);
  uint64_t *spare = (uint64_t *)(void *)(own + a->at_spare);
  int64_t count = a->count;
  double sum = 0.0;
  if (a->p->score == ATTN_EXPERTS_SIGMOID)
    attn_on_(dense, a->table)->act(s, l, NULL, count, NULL, 1.0f, ATTN_ACT_SIGMOID);
  else
    attn_experts_softmax_(a->table, s, l, count);
  if (a->group_k < a->groups)
    count = attn_experts_groups_(a, s, l, list, spare);
  else
    for (int64_t e = 0; e < count; e++) list[e] = attn_experts_candidate_(a, s, l, e);
  if (a->k < count) attn_select_(list, count, a->k, spare);
  attn_sort_(list, a->k, spare);
  for (int64_t i = 0; i < a->k; i++) {
    const int64_t e = attn_candidate_index_(list[i]);
    a->expert[row * a->k + i] = (int32_t)e, weight[i] = s[e], sum += (double)s[e];
  }
  for (int64_t i = 0; i < a->k; i++) {
    double w = (double)weight[i];
    if (!a->p->no_renormalize) w = sum > 0.0 || sum != sum ? w / sum : 0.0;
    weight[i] = (float)(w * (double)a->scale);
  }
}

ATTN_FUNC_ void attn_experts_gate_item_(void *job, int worker, int64_t index) {
  const attn_experts_gate_ *a = (const attn_experts_gate_ *)job;
  const int64_t from = index * a->run, end = a->rows - from < a->run ? a->rows : from + a->run;
  for (int64_t row = from; row < end; row++)
    attn_experts_choose_(a, a->own + worker * a->each, row);
}

ATTN_COLD_ int attn_experts_gate_steps_(attn_stage_ *s, attn_experts_gate_ *a) {
  a->table = s->table;
  a->run = a->count < ATTN_EXPERTS_CHOICES_ ? ATTN_EXPERTS_CHOICES_ / a->count : 1;
  a->at_list = attn_piece_(a->count, 4);
  a->at_spare = attn_add_(a->at_list, attn_piece_(a->count, 8));
  a->each = attn_add_(a->at_spare, attn_piece_(a->count, 8));
  return attn_stage_for_(s, attn_runs_of_(a->rows, a->run), attn_experts_gate_item_, a, a->each,
                         &a->own);
}
