/* families/linear/linear_state.h owns the state of linear attention that a caller keeps: a header that says
 * what it is a state of, then a slot of floats for each batch entry and state head. */

/* What a state is one of. The block follows it: slots of [S | z | numbers]. */
typedef struct attn_linear_block_ {
  uint64_t magic, seed;
  int64_t batch, heads, kv_heads, dk, dv, m, wide, slot, draw;
  int32_t rule, kind, norm, activation, per_head, keep_norm, key_stab, running;
  int64_t order;
  float scale, kernel_eps, sigma, eps, key_const;
  int32_t sigmas;
  uint64_t rest[8];
} attn_linear_block_;

/* "attnlin" and a version */
#define ATTN_LINEAR_MAGIC_ (((uint64_t)0x6174746eu << 32) | 0x6c696e02u)

ATTN_FUNC_ attn_linear_block_ attn_linear_block_of_(const attn_linear_ *a, int64_t batch,
                                                    int64_t kv_heads) {
  const attn_map_ *map = &a->map;
  const attn_feature_map *p = &map->p;
  attn_linear_block_ b;
  attn_clear_(&b, sizeof b);
  b.magic = ATTN_LINEAR_MAGIC_;
  b.seed = p->seed, b.draw = p->draw;
  b.batch = batch, b.heads = a->heads, b.kv_heads = kv_heads;
  b.dk = map->dk, b.dv = a->dv, b.m = a->m, b.wide = a->wide, b.slot = a->slot;
  b.rule = (int32_t)a->rule, b.kind = (int32_t)map->kind, b.norm = (int32_t)p->norm;
  b.per_head = map->per_head, b.running = map->running;
  b.scale = p->scale;
  if (map->kind == ATTN_FEATURES_ACT)
    b.activation = (int32_t)p->activation, b.kernel_eps = p->kernel_eps;
  if (map->kind == ATTN_FEATURES_DPFP) b.order = p->order;
  if (map->kind == ATTN_FEATURES_RFA)
    b.sigma = p->sigma, b.sigmas = p->sigmas != NULL, b.keep_norm = p->keep_norm != 0;
  if (map->kind == ATTN_FEATURES_SOFTMAX || map->kind == ATTN_FEATURES_HYPERBOLIC)
    b.eps = p->eps, b.key_const = p->key_const, b.key_stab = (int32_t)p->key_stab;
  return b;
}

/* Bytes behind the header; INT64_MAX: too many. */
ATTN_FUNC_ int64_t attn_linear_floats_(int64_t batch, int64_t heads, int64_t slot) {
  return attn_mul_(attn_mul_(batch, heads), attn_mul_(slot, (int64_t)sizeof(float)));
}

/* Floats of a state without sums of values. */
ATTN_FUNC_ int64_t attn_linear_slot_size_(int64_t m, int64_t wide) {
  return attn_add_(attn_mul_(attn_add_(m, m), wide), 2 * attn_group_up_(m) + ATTN_LINEAR_TAIL_);
}

/* Whether a call whose rule is legal is causal. */
ATTN_FUNC_ int attn_linear_causal_(const attn_linear_params *p) {
  return p->causal == ATTN_LINEAR_CAUSAL_DEFAULT ? p->rule != ATTN_LINEAR_SUM
                                                 : p->causal == ATTN_LINEAR_CAUSAL;
}

/* The widths that follow from map and rule. */
ATTN_FUNC_ int attn_linear_sizes_(attn_error_ *e, attn_linear_ *a, const attn_linear_params *p,
                                  int64_t heads, int64_t kv_heads, int64_t dk, int64_t dv) {
  if ((int)p->rule < 0 || p->rule >= ATTN_LINEAR_COUNT)
    return attn_reject_(e, ATTN_E_RANGE, "params.rule must be an attn_linear_rule");
  if (p->causal < 0 || p->causal >= ATTN_LINEAR_CAUSALS)
    return attn_reject_(e, ATTN_E_RANGE, "params.causal must be an attn_linear_causal");
  a->rule = p->rule, a->dv = dv, a->causal = attn_linear_causal_(p);
  a->delta = p->rule == ATTN_LINEAR_DELTA || p->rule == ATTN_LINEAR_DELTA_ATTN;
  a->decays = p->rule == ATTN_LINEAR_DECAY || p->rule == ATTN_LINEAR_GATED;
  if (!attn_map_check_(e, &a->map, &p->map, dk, heads, a->causal, a->delta)) return 0;
  a->m = a->map.m;
  a->heads = a->map.per_head ? heads : kv_heads;
  a->group = a->heads ? heads / a->heads : 1;
  a->per_kv = kv_heads ? a->heads / kv_heads : 1;
  if (dv > INT64_MAX / 1024)
    return attn_reject_(e, ATTN_E_OVERFLOW, "a state would not fit the address space");
  a->wide = attn_group_up_(dv);
  a->slot = attn_linear_slot_size_(a->m, a->wide);
  if (attn_mul_(a->slot, 4) == INT64_MAX)
    return attn_reject_(e, ATTN_E_OVERFLOW, "a state would not fit the address space");
  if (p->state && a->map.late_eps > 0.0f)
    return attn_reject_(e, ATTN_E_VALUE,
                        "params.map.key_stab must be ATTN_STAB_RUNNING or ATTN_STAB_CONST with a "
                        "state, whose last key never comes");
  if (a->map.late_eps > 0.0f) {
    a->late = a->slot;
    a->slot = attn_add_(a->slot, 2 * a->wide);
  }
  return 1;
}

/* The block is one for these arguments. */
ATTN_FUNC_ int attn_linear_check_block_(attn_error_ *e, const attn_linear_block_ *want,
                                        const void *state, size_t bytes, attn_span_ *span) {
  attn_linear_block_ have;
  const int64_t size =
      attn_add_(attn_linear_floats_(want->batch, want->heads, want->slot), (int64_t)sizeof have);
  if ((uintptr_t)state % 8)
    return attn_reject_(e, ATTN_E_ALIGN, "params.state must be aligned to 8 bytes");
  if (bytes < sizeof have || (uint64_t)bytes < (uint64_t)size)
    return attn_reject_(e, ATTN_E_SHAPE,
                        "params.state_bytes must be what attn_linear_state_bytes returns");
  if (!attn_check_array_(e, state, size, 1, "params.state", span)) return 0;
  memcpy(&have, state, sizeof have);
  if (have.magic != want->magic)
    return attn_reject_(e, ATTN_E_VALUE, "params.state was not made by attn_linear_begin");
  if (have.batch != want->batch || have.heads != want->heads || have.kv_heads != want->kv_heads ||
      have.dk != want->dk || have.dv != want->dv || have.m != want->m || have.wide != want->wide ||
      have.slot != want->slot)
    return attn_reject_(e, ATTN_E_SHAPE, "params.state was made for other sizes");
  if (have.rule != want->rule)
    return attn_reject_(e, ATTN_E_VALUE, "params.state was made for another params.rule");
  if (have.seed != want->seed || have.draw != want->draw)
    return attn_reject_(e, ATTN_E_VALUE,
                        "params.state was made under another params.map.seed or .draw");
  if (memcmp(&have, want, sizeof have))
    return attn_reject_(e, ATTN_E_VALUE, "params.state was made for another params.map");
  return 1;
}

/* What attn_linear_begin and attn_linear_state_bytes share. */
ATTN_FUNC_ int attn_linear_new_(attn_error_ *e, attn_linear_ *a, const attn_linear_params *params,
                                int64_t batch, int64_t heads, int64_t kv_heads, int64_t dk,
                                int64_t dv) {
  attn_linear_params p;
  memset(&p, 0, sizeof p);
  if (params) p = *params;
  attn_clear_(a, sizeof *a);
  p.state = &p;
  if (batch < 1 || heads < 1 || kv_heads < 1 || dk < 1 || dv < 1)
    return attn_reject_(e, ATTN_E_SHAPE, "batch, heads, kv_heads, dk and dv must be at least 1");
  if (heads % kv_heads) return attn_reject_(e, ATTN_E_HEADS, "kv_heads must divide heads");
  if (!attn_linear_sizes_(e, a, &p, heads, kv_heads, dk, dv)) return 0;
  if (attn_workspace_bytes_(attn_linear_floats_(batch, a->heads, a->slot), 1) == INT64_MAX)
    return attn_reject_(e, ATTN_E_OVERFLOW, "a state would not fit the address space");
  return 1;
}

ATTN_PUB_ size_t attn_linear_state_bytes(const attn_linear_params *params, int64_t batch,
                                         int64_t heads, int64_t kv_heads, int64_t dk, int64_t dv) {
  attn_error_ e = {ATTN_OK, NULL};
  attn_linear_ a;
  if (!attn_linear_new_(&e, &a, params, batch, heads, kv_heads, dk, dv)) return 0;
  return sizeof(attn_linear_block_) + (size_t)attn_linear_floats_(batch, a.heads, a.slot);
}

ATTN_PUB_ attn_status attn_linear_begin(void *state, size_t bytes, const attn_linear_params *params,
                                        int64_t batch, int64_t heads, int64_t kv_heads, int64_t dk,
                                        int64_t dv, attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  attn_linear_ a;
  int workers;
  if (!attn_check_ctx_(&e, ctx, &table, &workers) ||
      !attn_linear_new_(&e, &a, params, batch, heads, kv_heads, dk, dv))
    return attn_end_(ctx, &e);
  const attn_linear_block_ head = attn_linear_block_of_(&a, batch, kv_heads);
  if (!state) {
    attn_reject_(&e, ATTN_E_NULL, "state must not be null");
  } else if ((uintptr_t)state % 8) {
    attn_reject_(&e, ATTN_E_ALIGN, "state must be aligned to 8 bytes");
  } else if ((uint64_t)bytes <
             sizeof head + (uint64_t)attn_linear_floats_(batch, a.heads, a.slot)) {
    attn_reject_(&e, ATTN_E_SHAPE, "bytes must be what attn_linear_state_bytes returns");
  } else {
    float *slots = (float *)(void *)((char *)state + sizeof head);
    memcpy(state, &head, sizeof head);
    for (int64_t n = 0; n < batch * a.heads; n++) attn_linear_empty_(&a, slots + n * a.slot);
    attn_report_(ctx, table, 1, "an empty state", "the only path");
  }
  return attn_end_(ctx, &e);
}

ATTN_PUB_ attn_status attn_linear_view(void *state, size_t bytes, attn_tensor *s, attn_tensor *z,
                                       attn_ctx *ctx) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table;
  attn_linear_block_ b;
  int workers;
  if (!attn_check_ctx_(&e, ctx, &table, &workers)) return attn_end_(ctx, &e);
  if (!state) {
    attn_reject_(&e, ATTN_E_NULL, "state must not be null");
    return attn_end_(ctx, &e);
  }
  if ((uintptr_t)state % 8 || bytes < sizeof b) {
    attn_reject_(&e, (uintptr_t)state % 8 ? ATTN_E_ALIGN : ATTN_E_SHAPE,
                 "state must be aligned to 8 bytes and as long as attn_linear_state_bytes says");
    return attn_end_(ctx, &e);
  }
  memcpy(&b, state, sizeof b);
  const int sane = b.batch >= 1 && b.heads >= 1 && b.dv >= 1 && b.m >= 1 &&
                   b.dv <= INT64_MAX / 1024 && b.m <= INT64_MAX / 1024;
  if (b.magic != ATTN_LINEAR_MAGIC_ || !sane || b.wide != attn_group_up_(b.dv) ||
      b.slot != attn_linear_slot_size_(b.m, b.wide)) {
    attn_reject_(&e, ATTN_E_VALUE, "state was not made by attn_linear_begin");
  } else if ((uint64_t)bytes - sizeof b < (uint64_t)attn_linear_floats_(b.batch, b.heads, b.slot)) {
    attn_reject_(&e, ATTN_E_SHAPE, "bytes must be what attn_linear_state_bytes returns");
  } else {
    float *slots = (float *)(void *)((char *)state + sizeof b);
    attn_linear_ a;
    memset(&a, 0, sizeof a);
    a.m = b.m, a.wide = b.wide;
    for (int64_t n = 0; n < b.batch * b.heads; n++) {
      attn_linear_settle_(table, attn_linear_slot_at_(&a, slots + n * b.slot), b.m * b.wide);
      attn_row_one_nan_(table, slots + n * b.slot, 2 * b.m * b.wide);
    }
    const attn_tensor t[2] = {
        attn_bhtd(slots, ATTN_F32, b.batch, b.heads, b.m, b.dv),
        attn_bhtd(slots + 2 * b.m * b.wide, ATTN_F32, b.batch, b.heads, 1, b.m)};
    if (s) *s = t[0], s->stride_len = b.wide, s->stride_head = b.slot;
    if (z) *z = t[1], z->stride_head = b.slot;
    if (s) s->stride_batch = b.heads * b.slot;
    if (z) z->stride_batch = b.heads * b.slot;
  }
  return attn_end_(ctx, &e);
}

#undef ATTN_LINEAR_MAGIC_
