/* families/content/mixture.h owns mixtures of attention experts (D6): the gate, the choice of experts, and the sum of
 * their outputs, of all rows or of those that are sent. */

enum { ATTN_MX_GATE_, ATTN_MX_SELECT_, ATTN_MX_MIX_, ATTN_MX_SEND_, ATTN_MX_GATED_ };

typedef struct attn_mixture_job_ {
  const attn_table_ *table;
  attn_tensor o, pi, x, w, weight;
  const attn_expert *experts;
  int64_t count;   /* P */
  int32_t *expert; /* [B][Hg][Tq][k] */
  int64_t k;       /* 0: all */
  attn_mixture_params p;
  attn_tensor part; /* f32 [B,H,Tq,dv]: outputs of one expert */
  attn_tensor sum;  /* f32, o itself if it is f32 */
  float *share;     /* [B][Hg][P][Tq] weights, 0 = not sent */
  int32_t *rows;    /* [B][Hg][P][Tq] the rows that are sent, ascending */
  int32_t *served;  /* [B][Hg][P] how many */
  int64_t now;      /* the expert at work */
  char *memory;     /* of the workers */
  int64_t each;
} attn_mixture_job_;

/* ---- the gate -------------------------------------------------------------------------------*/

/* pi = softmax(pi by), rows as they are in memory. */
ATTN_FUNC_ void attn_gate_item_(void *job, int worker, int64_t index) {
  const attn_mixture_job_ *a = (const attn_mixture_job_ *)job;
  const attn_tensor *pi = &a->pi;
  const int64_t tiles = attn_tiles_of_(pi->len), unit = index / tiles, n = pi->dim;
  const int64_t i0 = index % tiles * ATTN_TILE_, left = pi->len - i0;
  const float by = (float)attn_clamp_f64_(ATTN_LOG2E_ / (double)a->p.temperature);
  (void)worker;
  for (int64_t i = i0; i < i0 + (left < ATTN_TILE_ ? left : ATTN_TILE_); i++) {
    float *x = (float *)(void *)attn_at_(pi, unit / pi->heads, unit % pi->heads, i);
    float top = -INFINITY;
    double sum = 0.0;
    for (int64_t c = 0; c < n; c++)
      if (x[c] > top || x[c] != x[c]) top = x[c];
    if (top == -INFINITY) top = 0.0f;                         /* no expert is allowed */
    for (int64_t c = 0; c < n; c++) x[c] = (x[c] - top) * by; /* a difference may pass all bounds */
    a->table->weights(x, x, n, 0.0f, 1.0f);
    for (int64_t c = 0; c < n; c++) sum += (double)x[c];
    for (int64_t c = 0; c < n && sum != 0.0; c++) x[c] = (float)((double)x[c] / sum);
  }
}

ATTN_COLD_ int attn_gate_steps_(attn_stage_ *s, void *job) {
  attn_mixture_job_ *a = (attn_mixture_job_ *)job;
  attn_gemm_params p;
  memset(&p, 0, sizeof p);
  p.bias = a->p.bias;
  a->table = s->table;
  return attn_stage_gemm_(s, a->pi, a->x, a->w, &p) &&
         attn_stage_for_(s, attn_mul_(a->pi.batch * a->pi.heads, attn_tiles_of_(a->pi.len)),
                         attn_gate_item_, a, 0, NULL);
}

/* ---- the choice -----------------------------------------------------------------------------*/

/* One (batch, head of the gate): rows in order, since the first ones are served. */
ATTN_FUNC_ void attn_choose_item_(void *job, int worker, int64_t unit) {
  const attn_mixture_job_ *a = (const attn_mixture_job_ *)job;
  const int64_t b = unit / a->pi.heads, h = unit % a->pi.heads, k = a->k, n = a->pi.len;
  char *memory = a->memory + worker * a->each;
  int64_t *load = (int64_t *)(void *)memory;
  float *weight = (float *)(void *)(memory + attn_piece_(a->pi.dim, 8));
  for (int64_t c = 0; c < a->pi.dim; c++) load[c] = 0;
  for (int64_t i = 0; i < n; i++) {
    int32_t *to = a->expert + (unit * n + i) * k;
    double sum = 0.0;
    for (int64_t e = 0; e < k; e++) {
      weight[e] = attn_number_(attn_at_(&a->pi, b, h, i), to[e], a->pi.dtype, NULL);
      sum += (double)weight[e];
    }
    for (int64_t e = 0; e < k; e++) {
      if (!a->p.no_renormalize)
        weight[e] = sum > 0.0 || sum != sum ? (float)((double)weight[e] / sum) : 0.0f;
      if (a->p.capacity > 0 && load[to[e]] >= a->p.capacity)
        to[e] = -1, weight[e] = 0.0f;
      else
        load[to[e]]++;
    }
    memcpy(attn_at_(&a->weight, b, h, i), weight, (size_t)k * sizeof *weight);
  }
}

ATTN_COLD_ int attn_choose_steps_(attn_stage_ *s, void *job) {
  attn_mixture_job_ *a = (attn_mixture_job_ *)job;
  attn_best_ best;
  memset(&best, 0, sizeof best);
  best.x = a->pi, best.k = a->k, best.index = a->expert;
  a->table = s->table;
  a->each = attn_add_(attn_piece_(a->pi.dim, 8), attn_piece_(a->k, 4));
  return attn_best_steps_(s, &best) && attn_stage_for_(s, attn_mul_(a->pi.batch, a->pi.heads),
                                                       attn_choose_item_, a, a->each, &a->memory);
}

/* ---- sums of outputs ------------------------------------------------------------------------*/

/* sum += weight part, or as the first expert sum = .., rows of 64; after the last, o = sum. */
ATTN_FUNC_ void attn_mix_item_(void *job, int worker, int64_t index) {
  const attn_mixture_job_ *a = (const attn_mixture_job_ *)job;
  const int64_t tiles = attn_tiles_of_(a->o.len), unit = index / tiles, dv = a->o.dim;
  const int64_t b = unit / a->o.heads, h = unit % a->o.heads, i0 = index % tiles * ATTN_TILE_;
  const int64_t i1 = a->o.len - i0 < ATTN_TILE_ ? a->o.len : i0 + ATTN_TILE_;
  (void)worker;
  for (int64_t i = i0; i < i1; i++) {
    float *sum = (float *)(void *)attn_at_(&a->sum, b, h, i);
    const float weight =
        attn_number_(attn_at_(&a->pi, b, a->pi.heads > 1 ? h : 0, i), a->now, a->pi.dtype, NULL);
    a->table->blend(sum, a->now ? sum : NULL, attn_at_(&a->part, b, h, i), ATTN_F32, ATTN_F32,
                    ATTN_F32, dv, 1.0f, weight);
    if (a->now == a->count - 1 && a->o.dtype != ATTN_F32)
      a->table->blend(attn_at_(&a->o, b, h, i), sum, NULL, a->o.dtype, ATTN_F32, ATTN_F32, dv, 1.0f,
                      0.0f);
  }
}

ATTN_COLD_ int attn_mix_steps_(attn_stage_ *s, void *job) {
  attn_mixture_job_ *a = (attn_mixture_job_ *)job;
  const attn_tensor *o = &a->o;
  const int64_t items = attn_mul_(attn_mul_(o->batch, o->heads), attn_tiles_of_(o->len));
  a->table = s->table;
  a->part = attn_stage_tensor_(s, o->batch, o->heads, o->len, o->dim);
  a->sum = attn_stage_part_(s, o);
  for (a->now = 0; a->now < a->count; a->now++) {
    const attn_expert *p = &a->experts[a->now];
    if (!attn_stage_sdpa_(s, a->part, p->q, p->k, p->v, p->params) ||
        !attn_stage_for_(s, items, attn_mix_item_, a, 0, NULL))
      return 0;
  }
  return 1;
}

/* ---- rows that are sent ---------------------------------------------------------------------*/

/* Where the numbers of a expert are in share, rows and served. */
ATTN_FUNC_ int64_t attn_send_unit_(const attn_mixture_job_ *a, int64_t b, int64_t h) {
  const int64_t heads = a->weight.heads;
  return (b * heads + (heads > 1 ? h : 0)) * a->count + a->now;
}

/* Turns the lists of one (batch, head of the gate) round: rows by expert. */
ATTN_FUNC_ void attn_send_turn_(void *job, int worker, int64_t unit) {
  const attn_mixture_job_ *a = (const attn_mixture_job_ *)job;
  const int64_t heads = a->weight.heads, b = unit / heads, h = unit % heads, n = a->o.len;
  float *share = a->share + unit * a->count * n;
  int32_t *rows = a->rows + unit * a->count * n, *served = a->served + unit * a->count;
  (void)worker;
  for (int64_t c = 0; c < a->count; c++) served[c] = 0;
  for (int64_t x = 0; x < a->count * n; x++) share[x] = 0.0f;
  for (int64_t i = 0; i < n; i++) {
    const int32_t *expert = a->expert + (unit * n + i) * a->k;
    for (int64_t e = 0; e < a->k; e++) {
      const float weight = attn_number_(attn_at_(&a->weight, b, h, i), e, ATTN_F32, NULL);
      if (expert[e] < 0 || weight == 0.0f) continue;
      share[expert[e] * n + i] = weight;
      rows[expert[e] * n + served[expert[e]]++] = (int32_t)i;
    }
  }
}

/* The runs of a schedule's tile, or its lists, for those of its rows that are sent: a tile of its own. */
typedef struct attn_sent_ {
  attn_plan_ plan;
  attn_plan_tile_ tile;
  int64_t row[ATTN_TILE_];
} attn_sent_;

ATTN_FUNC_ int attn_sent_tile_(const attn_plan_ *plan, const attn_plan_tile_ *tile,
                               const float *share, attn_sent_ *own, char *room) {
  const int32_t *row = (const int32_t *)attn_plan_at_(plan, plan->at_row) + tile->row;
  uint64_t kept = 0;
  int n = 0;
  for (int r = 0; r < tile->n; r++)
    if (share[row[r]] != 0.0f) kept |= attn_bit_(r), own->row[n++] = row[r];
  if (n == 0) return 0;
  own->tile.n = n, own->tile.step = tile->step;
  own->tile.row = own->tile.at = own->tile.count = 0;
  if (tile->step == 0) {
    const int32_t *from = (const int32_t *)attn_plan_at_(plan, plan->at_key) + tile->at;
    int32_t *to = (int32_t *)(void *)room, *key = to + n + 1;
    n = 0, to[0] = 0;
    for (int r = 0; r < tile->n; r++) {
      const int32_t keys = from[r + 1] - from[r];
      if (!(kept >> r & 1)) continue;
      if (keys > 0) memcpy(key + to[n], from + tile->n + 1 + from[r], (size_t)keys * sizeof *key);
      to[n + 1] = to[n] + keys, n++;
    }
    own->tile.count = to[n];
    return n;
  }
  const attn_plan_run_ *from = (const attn_plan_run_ *)attn_plan_at_(plan, plan->at_run) + tile->at;
  attn_plan_run_ *to = (attn_plan_run_ *)(void *)room;
  for (int64_t x = 0; x < tile->count; x++) {
    uint64_t lanes = 0;
    int at = 0;
    for (uint64_t left = kept; left; left &= left - 1, at++)
      lanes |= (from[x].lanes >> attn_lowest_(left) & 1) << at;
    if (!lanes) continue;
    to[own->tile.count] = from[x];
    to[own->tile.count++].lanes = lanes;
  }
  return n;
}

/* A tile of the rows that are sent to a expert, or of a schedule's tile those that are. */
ATTN_FUNC_ void attn_send_item_(void *job, int worker, int64_t index) {
  const attn_softmax_ *f = (const attn_softmax_ *)job;
  const attn_mixture_job_ *a = (const attn_mixture_job_ *)f->own_job;
  attn_softmax_ own = *f;
  attn_sent_ sent;
  attn_tile_ t;
  int last = 1;
  if (f->plan) {
    const attn_plan_ *p = f->plan;
    const int32_t *variant = (const int32_t *)attn_plan_at_(p, p->at_head);
    const int32_t *phases = (const int32_t *)attn_plan_at_(p, p->at_phase);
    char *room = a->memory + worker * a->each;
    int64_t h = 0, first, left = index % f->tiles, n;
    while ((n = attn_plan_tiles_(p, h, f->phase, &first)) <= left) left -= n, h++;
    const int64_t b = index / f->tiles, unit = attn_send_unit_(a, b, h);
    const attn_plan_tile_ *tile =
        (const attn_plan_tile_ *)attn_plan_at_(p, p->at_tile) + first + (n - 1 - left);
    n = attn_sent_tile_(p, tile, a->share + unit * a->o.len, &sent, room);
    if (n == 0) return;
    memset(&sent.plan, 0, sizeof sent.plan);
    sent.plan.at_key = sent.plan.at_run = sizeof sent.plan;
    memcpy(room - sizeof sent.plan, &sent.plan, sizeof sent.plan);
    own.plan = (const attn_plan_ *)(void *)(room - sizeof sent.plan);
    attn_tile_open_(&t, &own, worker);
    t.plan = &sent.tile, t.batch = b, t.n = (int)n;
    for (int r = 0; r < t.n; r++) t.row[r] = sent.row[r], t.head[r] = h;
    last = f->phase == phases[variant[h]] - 1;
  } else {
    const int64_t tiles = attn_tiles_of_(a->o.len), b = index / tiles / a->o.heads;
    const int64_t h = index / tiles % a->o.heads, unit = attn_send_unit_(a, b, h);
    const int64_t from = index % tiles * ATTN_TILE_, left = a->served[unit] - from;
    if (left <= 0) return;
    attn_tile_open_(&t, &own, worker);
    t.batch = b, t.n = left < ATTN_TILE_ ? (int)left : (int)ATTN_TILE_;
    for (int r = 0; r < t.n; r++) t.row[r] = a->rows[unit * a->o.len + from + r], t.head[r] = h;
  }
  attn_tile_run_(&t, last);
  if (last)
    for (int r = 0; r < t.n; r++) {
      float *sum = (float *)(void *)attn_at_(&a->sum, t.batch, t.head[r], t.row[r]);
      a->table->blend(sum, sum, attn_at_(&a->part, t.batch, t.head[r], t.row[r]), ATTN_F32,
                      ATTN_F32, ATTN_F32, a->o.dim, 1.0f,
                      a->share[attn_send_unit_(a, t.batch, t.head[r]) * a->o.len + t.row[r]]);
    }
}

/* Before the first expert (now < 0) sums are 0; before a expert its LSE is that of nothing; after the last (now
 * = P) o = sum. */
ATTN_FUNC_ void attn_send_frame_(void *job, int worker, int64_t index) {
  const attn_mixture_job_ *a = (const attn_mixture_job_ *)job;
  const int64_t tiles = attn_tiles_of_(a->o.len), unit = index / tiles, dv = a->o.dim;
  const int64_t b = unit / a->o.heads, h = unit % a->o.heads, i0 = index % tiles * ATTN_TILE_;
  const int64_t i1 = a->o.len - i0 < ATTN_TILE_ ? a->o.len : i0 + ATTN_TILE_;
  const float none = -INFINITY;
  (void)worker;
  for (int64_t i = i0; i < i1; i++) {
    float *sum = (float *)(void *)attn_at_(&a->sum, b, h, i);
    if (a->now < 0)
      memset(sum, 0, (size_t)dv * sizeof *sum);
    else if (a->now < a->count)
      memcpy(attn_at_(&a->experts[a->now].params->lse, b, h, i), &none, sizeof none);
    else
      a->table->blend(attn_at_(&a->o, b, h, i), sum, NULL, a->o.dtype, ATTN_F32, ATTN_F32, dv, 1.0f,
                      0.0f);
  }
}

/* One expert. Its params are those of the caller, in the order of many queries. */
ATTN_COLD_ int attn_send_path_(attn_stage_ *s, attn_mixture_job_ *a) {
  const attn_expert *expert = &a->experts[a->now];
  attn_sdpa_params p;
  attn_softmax_ f;
  int workers;
  int64_t most = 0;
  memset(&p, 0, sizeof p);
  memset(&f, 0, sizeof f);
  if (expert->params) p = *expert->params;
  p.one_order = 1;
  f.o = a->part, f.q = expert->q, f.k = expert->k, f.v = expert->v;
  if (!attn_sdpa_plan_(s->e, &f, &p, &s->ctx, &workers, -1)) return 0;
  if (f.plan)
    for (int64_t x = 0; x < f.plan->tiles; x++) { /* bytes of a tile's runs or lists */
      const attn_plan_tile_ *t =
          (const attn_plan_tile_ *)attn_plan_at_(f.plan, f.plan->at_tile) + x;
      const int64_t bytes = t->step ? t->count * (int64_t)sizeof(attn_plan_run_)
                                    : (t->n + 1 + t->count) * (int64_t)sizeof(int32_t);
      if (bytes > most) most = bytes;
    }
  f.own = attn_send_item_, f.own_job = a;
  f.own_items = attn_mul_(attn_mul_(a->o.batch, a->o.heads), attn_tiles_of_(a->o.len));
  const int64_t head = attn_piece_(1, sizeof(attn_plan_));
  const int pieces = attn_softmax_workers_(&f, s->workers);
  a->each = f.plan ? attn_add_(head, attn_piece_(most, 1)) : 0;
  const int64_t bytes = attn_softmax_bytes_(&f, s->workers), own = attn_mul_(a->each, pieces);
  char *spare = attn_stage_spare_(s, attn_add_(own, bytes));
  if (!s->run) return 1;
  a->memory = spare + head;
  if (p.lse.data && !attn_stage_for_(s, f.own_items, attn_send_frame_, a, 0, NULL)) return 0;
  s->ctx.workspace = spare + own, s->ctx.workspace_size = (size_t)(s->spare - own);
  if (!attn_softmax_run_(s->e, &f, &s->ctx, s->workers)) return 0;
  s->pairs += s->ctx.report.pairs;
  return 1;
}

ATTN_COLD_ int attn_send_steps_(attn_stage_ *s, void *job) {
  attn_mixture_job_ *a = (attn_mixture_job_ *)job;
  const attn_tensor *o = &a->o;
  const int64_t items = attn_mul_(attn_mul_(o->batch, o->heads), attn_tiles_of_(o->len));
  const int64_t units = attn_mul_(a->weight.batch, a->weight.heads);
  const int64_t cells = attn_mul_(attn_mul_(units, a->count), o->len);
  a->table = s->table;
  a->part = attn_stage_tensor_(s, o->batch, o->heads, o->len, o->dim);
  a->sum = attn_stage_part_(s, o);
  a->share = (float *)attn_stage_take_(s, cells, 4);
  a->rows = (int32_t *)attn_stage_take_(s, cells, 4);
  a->served = (int32_t *)attn_stage_take_(s, attn_mul_(units, a->count), 4);
  a->now = -1;
  if (!attn_stage_for_(s, units, attn_send_turn_, a, 0, NULL) ||
      !attn_stage_for_(s, items, attn_send_frame_, a, 0, NULL))
    return 0;
  for (a->now = 0; a->now < a->count; a->now++)
    if (!attn_send_path_(s, a)) return 0;
  return o->dtype == ATTN_F32 || attn_stage_for_(s, items, attn_send_frame_, a, 0, NULL);
}

ATTN_COLD_ int attn_gated_steps_(attn_stage_ *s, void *job) {
  attn_mixture_job_ *a = (attn_mixture_job_ *)job;
  const int64_t b = a->o.batch, n = a->o.len;
  const int64_t h = a->x.heads > a->w.heads ? a->x.heads : a->w.heads;
  a->pi = attn_stage_tensor_(s, b, h, n, a->count);
  if (!attn_gate_steps_(s, a)) return 0;
  if (a->k == 0) return attn_mix_steps_(s, a);
  a->weight = attn_stage_tensor_(s, b, h, n, a->k);
  a->expert = (int32_t *)attn_stage_take_(s, attn_mul_(attn_mul_(b, h), attn_mul_(n, a->k)), 4);
  return attn_choose_steps_(s, a) && attn_send_steps_(s, a);
}
