/* selection.h owns the decoding of bytes into calls that select keys: by blocks, pages, an indexer or
 * compressed keys, for a prompt, and those that a cache keeps. */

#ifndef FUZZ_SELECTION_H
#define FUZZ_SELECTION_H

#include "arrays.h"
#include "stored.h"

/* INDEX is an array of integers or the bytes of a mask; the first outputs are written. */
enum {
  KEYS_O,
  KEYS_LSE,
  KEYS_INDEX,
  KEYS_MASS,
  KEYS_OFFSETS,
  KEYS_Q,
  KEYS_K,
  KEYS_V,
  KEYS_X,
  KEYS_X2,
  KEYS_X3,
  KEYS_KSEL,
  KEYS_VSEL,
  KEYS_KWIN,
  KEYS_VWIN,
  KEYS_TENSORS
};
/* attn_evict moves what it is given, scales too. */
enum { E_K, E_V, E_MORE, E_KS, E_KZ, E_VS, E_VZ, E_PLACES, E_KEPT };
enum {
  KEY_BLOCKS,
  MOBA,
  QUEST,
  DSA,
  NSA_COMPRESS,
  NSA,
  XATTENTION,
  VERTICAL_SLASH,
  SNAPKV,
  H2O,
  EVICT_CHOOSE,
  EVICT,
  SELECTION_KINDS
};

typedef struct selection_args {
  int kind;
  attn_key_blocks_params blocks;
  attn_moba_params moba;
  attn_quest_params quest;
  attn_dsa_params dsa;
  attn_nsa_compress_params compress;
  attn_nsa_params nsa;
  attn_xattention_params xattention;
  attn_vertical_slash_params slash;
  attn_snapkv_params snapkv;
  attn_h2o_params h2o;
  attn_evict_choose_params choose;
  attn_evict_params evict;
  int64_t capacity;
} selection_args;

static void selection_tensors(job *j) {
  selection_args *a = (selection_args *)j->args;
  const attn_tensor lse = j->b[KEYS_LSE].view, x = j->b[KEYS_X].view, x2 = j->b[KEYS_X2].view,
                    x3 = j->b[KEYS_X3].view;
  int32_t *index = (int32_t *)j->b[KEYS_INDEX].view.data;
  a->moba.index = a->quest.index = a->dsa.index = a->nsa.index = index;
  a->moba.attention.lse = a->quest.attention.lse = a->dsa.attention.lse = lse;
  a->moba.means = a->quest.bounds = a->dsa.ki = a->nsa.k_cmp = a->compress.e = x;
  a->dsa.qi = a->nsa.v_cmp = a->compress.w = x2;
  a->dsa.wi = a->nsa.gate = x3;
  a->nsa.k_sel = j->b[KEYS_KSEL].view, a->nsa.v_sel = j->b[KEYS_VSEL].view;
  a->nsa.k_win = j->b[KEYS_KWIN].view, a->nsa.v_win = j->b[KEYS_VWIN].view;
  a->xattention.mass = a->slash.columns = j->b[KEYS_MASS].view;
  a->slash.offsets = j->b[KEYS_OFFSETS].view;
  a->evict.more = j->b[E_MORE].view;
  a->evict.positions = (int32_t *)j->b[E_PLACES].view.data;
  if (a->kind != EVICT) return;
  a->evict.k_scales.scale = (float *)j->b[E_KS].view.data;
  a->evict.k_scales.zero = (float *)j->b[E_KZ].view.data;
  a->evict.v_scales.scale = (float *)j->b[E_VS].view.data;
  a->evict.v_scales.zero = (float *)j->b[E_VZ].view.data;
}

/* The call, or with bytes the workspace query. */
static attn_status selection(job *j, attn_ctx *ctx, const attn_ctx *query, size_t *bytes) {
  selection_args *a = (selection_args *)j->args;
  selection_tensors(j);
  const attn_tensor o = j->b[KEYS_O].view, q = j->b[KEYS_Q].view, k = j->b[KEYS_K].view,
                    v = j->b[KEYS_V].view;
  int32_t *index = (int32_t *)j->b[KEYS_INDEX].view.data;
  uint8_t *mask = (uint8_t *)j->b[KEYS_INDEX].view.data;
  switch (a->kind) {
    case KEY_BLOCKS: return EITHER(attn_key_blocks, o, k, &a->blocks);
    case MOBA: return EITHER(attn_moba, o, q, k, v, &a->moba);
    case QUEST: return EITHER(attn_quest, o, q, k, v, &a->quest);
    case DSA: return EITHER(attn_dsa, o, q, k, v, &a->dsa);
    case NSA_COMPRESS: return EITHER(attn_nsa_compress, o, k, &a->compress);
    case NSA: return EITHER(attn_nsa, o, q, k, v, &a->nsa);
    case XATTENTION: return EITHER(attn_xattention, mask, q, k, &a->xattention);
    case VERTICAL_SLASH: return EITHER(attn_vertical_slash, mask, q, k, &a->slash);
    case SNAPKV: return EITHER(attn_snapkv, o, q, k, &a->snapkv);
    case H2O: return EITHER(attn_h2o, o, q, k, &a->h2o);
    case EVICT_CHOOSE: return EITHER(attn_evict_choose, index, k, &a->choose);
    default:
      return EITHER(attn_evict, j->b[E_K].view, j->b[E_V].view,
                    (const int32_t *)j->b[E_KEPT].view.data, a->capacity, &a->evict);
  }
}

static attn_status call_selection(job *j, attn_ctx *ctx) { return selection(j, ctx, NULL, NULL); }
static size_t workspace_selection(job *j, const attn_ctx *ctx) {
  size_t bytes = 0;
  selection(j, NULL, ctx, &bytes);
  return bytes;
}

/* A size from 1 on, seldom another. */
static int64_t some_size(input *in, int n) {
  return chance(in, 12) ? nasty_int(in) : 1 + below(in, n);
}

static int64_t parts(int64_t n, int64_t size) {
  return n < 0 || size <= 0 ? 0 : n / size + (n % size != 0);
}

/* ---- softmaxes over what is chosen -----------------------------------------------------------*/

static void make_selected(input *in, job *j, store *s, attn_selected *p) {
  const attn_tensor *q = &j->b[KEYS_Q].view, *k = &j->b[KEYS_K].view;
  p->scale = some_scale(in);
  p->has_q_off = chance(in, 3);
  if (p->has_q_off || chance(in, 24)) p->q_off = chance(in, 8) ? nasty_int(in) : below(in, 60) - 20;
  if (chance(in, 3)) p->kv_len = make_lengths(in, s, q->batch, k->len);
  if (((selection_args *)j->args)->kind == NSA) return;
  if (chance(in, 4)) store_codes(in, j, s, &j->b[KEYS_K], j->b[KEYS_K].view, &p->k_scales);
  if (chance(in, 4)) store_codes(in, j, s, &j->b[KEYS_V], j->b[KEYS_V].view, &p->v_scales);
}

static void fuzz_selected(input *in, job *j, store *s) {
  selection_args *a = (selection_args *)j->args;
  const int64_t batch = below(in, 3), kv = 1 + below(in, 2), heads = kv * (1 + below(in, 4));
  const int64_t tk = below(in, 150), tq = chance(in, 3) ? tk / 2 : below(in, 40);
  const int64_t dk = 1 + below(in, 20), dv = 1 + below(in, 20);
  const int64_t size = 1 + below(in, 20), inner = 1 + below(in, 4), wide = 1 + below(in, 20);
  const int with = below(in, 16);
  int64_t chosen = some_size(in, 12), lists = heads;
  attn_tensor view[KEYS_TENSORS];
  memset(view, 0, sizeof view);
  view[KEYS_O] = any_view(in, batch, heads, tq, dv, 1);
  view[KEYS_Q] = any_view(in, batch, heads, tq, dk, 0);
  view[KEYS_K] = any_view(in, batch, kv, tk, dk, 0);
  view[KEYS_V] = any_view(in, batch, kv, tk, dv, 0);
  if (with & 1 && a->kind != NSA) view[KEYS_LSE] = f32_view(in, batch, heads, tq, 1, 1);
  attn_nsa_params *n = &a->nsa;
  if (a->kind == NSA) {
    if (!chance(in, 4)) {
      n->stride = 1 + below(in, 4), n->block = n->stride * (1 + below(in, 4));
      n->select = n->stride * (1 + below(in, 8)), n->blocks = 1 + below(in, 6);
      n->window = 1 + below(in, 80);
    }
    const int64_t l = n->block ? n->block : 32, d = n->stride ? n->stride : 16;
    const int64_t rows = tk < l ? 0 : (tk - l) / d + 1;
    view[KEYS_X3] = any_view(in, batch, heads, tq, 3, 0);
    if (with & 1) view[KEYS_X] = f32_view(in, batch, kv, rows, dk, 0);
    if (with & 1) view[KEYS_X2] = f32_view(in, batch, kv, rows, dv, 0);
    if (with & 2) view[KEYS_KSEL] = any_view(in, batch, kv, tk, dk, 0);
    if (with & 2) view[KEYS_VSEL] = any_view(in, batch, kv, tk, dv, 0);
    if (with & 4) view[KEYS_KWIN] = any_view(in, batch, kv, tk, dk, 0);
    if (with & 4) view[KEYS_VWIN] = any_view(in, batch, kv, tk, dv, 0);
  } else if (a->kind == DSA) {
    view[KEYS_X] = any_view(in, batch, 1, tk, wide, 0);
    view[KEYS_X2] = any_view(in, batch, inner, tq, wide, 0);
    view[KEYS_X3] = any_view(in, batch, 1, tq, inner, 0);
  } else if (with & 4) {
    view[KEYS_X] = f32_view(in, batch, kv, parts(tk, size), a->kind == QUEST ? 2 * dk : dk, 0);
  }
  make_buffers(in, j, view, KEYS_TENSORS);

  a->moba.block = a->quest.page = chance(in, 16) ? nasty_int(in) : size;
  a->moba.k = a->quest.pages = a->dsa.k = chosen;
  a->quest.last_competes = below(in, 2);
  attn_selected *p = a->kind == MOBA    ? &a->moba.attention
                     : a->kind == QUEST ? &a->quest.attention
                                        : &a->dsa.attention;
  make_selected(in, j, s, p);
  if (a->kind == DSA && chance(in, 4))
    store_codes(in, j, s, &j->b[KEYS_X], j->b[KEYS_X].view, &a->dsa.ki_scales);
  n->scale = p->scale, n->has_q_off = p->has_q_off, n->q_off = p->q_off, n->kv_len = p->kv_len;
  if (a->kind == NSA) {
    int64_t *number[5] = {&n->block, &n->stride, &n->select, &n->blocks, &n->window};
    if (chance(in, 8)) *number[below(in, 5)] = nasty_int(in);
    chosen = n->blocks ? n->blocks : 16, lists = j->b[KEYS_K].view.heads;
  } else if (a->kind == DSA) {
    lists = 1;
  } else {
    lists = j->b[KEYS_Q].view.heads;
  }
  const attn_tensor *q = &j->b[KEYS_Q].view;
  if (with & 8)
    make_words(&j->b[KEYS_INDEX], array_size(array_size(q->batch, lists, 1), q->len, chosen));
}

/* ---- vectors that stand for keys -------------------------------------------------------------*/

static void fuzz_standing(input *in, job *j, store *s) {
  selection_args *a = (selection_args *)j->args;
  const int64_t batch = below(in, 3), heads = 1 + below(in, 3), t = below(in, 150);
  const int64_t dim = 1 + below(in, 40), back = 1 + below(in, 20);
  const int64_t stride = 1 + below(in, 20), block = stride * (1 + below(in, 4));
  const int with = below(in, 4);
  attn_tensor view[KEYS_TENSORS];
  memset(view, 0, sizeof view);
  view[KEYS_K] = any_view(in, batch, heads, t, dim, 0);
  a->blocks.kind = (attn_key_block_kind)some(in, ATTN_KEY_BLOCK_KINDS);
  if (a->kind == KEY_BLOCKS) {
    const int64_t wide = a->blocks.kind == ATTN_KEY_BLOCK_BOUNDS ? 2 * dim : dim;
    view[KEYS_O] = f32_view(in, batch, heads, parts(t, stride), wide, 1);
  } else {
    const int64_t rows = t < block ? 0 : (t - block) / stride + 1, high = below(in, 2) ? heads : 1;
    view[KEYS_O] = f32_view(in, batch, heads, rows, with & 1 ? back : dim, 1);
    if (with & 1) view[KEYS_X2] = any_view(in, 1, high, block * dim, back, 0);
    if (with == 3) view[KEYS_X] = any_view(in, 1, high, block, dim, 0);
  }
  make_buffers(in, j, view, KEYS_TENSORS);
  a->blocks.size = chance(in, 12) ? nasty_int(in) : stride;
  a->compress.block = chance(in, 12) ? nasty_int(in) : block;
  a->compress.stride = chance(in, 12) ? nasty_int(in) : stride;
  if (chance(in, 3)) a->blocks.first = a->compress.first = some(in, (int)t + 1);
  if (chance(in, 3))
    a->blocks.kv_len = a->compress.kv_len = make_lengths(in, s, j->b[KEYS_K].view.batch, t);
  if (a->kind == KEY_BLOCKS && chance(in, 3))
    store_codes(in, j, s, &j->b[KEYS_K], j->b[KEYS_K].view, &a->blocks.k_scales);
}

/* ---- prompts and caches ----------------------------------------------------------------------*/

static float some_part_of(input *in) {
  return chance(in, 16) ? nasty_float(in) : (float)below(in, 5) / 4;
}

static void fuzz_estimate(input *in, job *j, store *s) {
  selection_args *a = (selection_args *)j->args;
  attn_xattention_params *x = &a->xattention;
  attn_vertical_slash_params *p = &a->slash;
  const int64_t batch = below(in, 3), kv = 1 + below(in, 2), heads = kv * (1 + below(in, 3));
  const int64_t tk = below(in, 200), tq = chance(in, 2) ? tk : below(in, (int)tk + 1);
  const int64_t dk = 1 + below(in, 40), stride = 1 + below(in, 8);
  int64_t block = stride * (1 + below(in, 8));
  const int with = below(in, 4), prompt = a->kind == XATTENTION || a->kind == VERTICAL_SLASH;
  if (chance(in, 8)) block = 0;
  const int64_t usual_block = a->kind == XATTENTION ? 128 : 64;
  const int64_t across = parts(tk, block ? block : usual_block),
                down = parts(tq, block ? block : usual_block);
  attn_tensor view[KEYS_TENSORS];
  memset(view, 0, sizeof view);
  view[KEYS_Q] = any_view(in, batch, heads, tq, dk, 0);
  view[KEYS_K] = any_view(in, batch, kv, tk, dk, 0);
  if (!prompt) view[KEYS_O] = f32_view(in, batch, kv, tk, a->kind == H2O ? 2 : 1, 1);
  if (a->kind == XATTENTION && with & 1)
    view[KEYS_MASS] = f32_view(in, batch, heads, down, across, 1);
  if (a->kind == VERTICAL_SLASH && with & 1) view[KEYS_MASS] = f32_view(in, batch, heads, 1, tk, 1);
  if (a->kind == VERTICAL_SLASH && with & 2)
    view[KEYS_OFFSETS] = f32_view(in, batch, heads, 1, tk, 1);
  make_buffers(in, j, view, KEYS_TENSORS);

  const attn_tensor *q = &j->b[KEYS_Q].view, *k = &j->b[KEYS_K].view;
  x->scale = p->scale = a->snapkv.scale = a->h2o.scale = some_scale(in);
  if (chance(in, 12)) block = nasty_int(in);
  x->block = p->block = block, x->stride = chance(in, 12) ? nasty_int(in) : block ? stride : 0;
  x->norm = some_scale(in);
  x->gamma = p->gamma = some_part_of(in);
  x->has_q_off = p->has_q_off = chance(in, 3);
  if (x->has_q_off || chance(in, 24))
    x->q_off = p->q_off = chance(in, 6) ? nasty_int(in) : tk - tq - below(in, (int)tk + 1);
  if (chance(in, 2)) p->queries = a->snapkv.window = some(in, 70);
  p->has_sink = below(in, 2), p->sink = some(in, 10);
  p->has_near_by = below(in, 2), p->near_by = some(in, 10);
  a->snapkv.kernel = some(in, 2) ? 2 * below(in, 40) + 1 : 0;
  if (chance(in, 12)) a->snapkv.kernel = nasty_int(in);
  a->snapkv.maximum = below(in, 2);
  const int32_t *q_len = chance(in, 3) ? make_lengths(in, s, q->batch, q->len) : NULL;
  const int32_t *kv_len = chance(in, 3) ? make_lengths(in, s, q->batch, k->len) : NULL;
  x->q_len = p->q_len = a->snapkv.q_len = a->h2o.q_len = q_len;
  x->kv_len = p->kv_len = a->snapkv.kv_len = a->h2o.kv_len = kv_len;
  if (!prompt && chance(in, 3)) {
    attn_scales scales = {0};
    store_codes(in, j, s, &j->b[KEYS_K], j->b[KEYS_K].view, &scales);
    a->snapkv.k_scales = a->h2o.k_scales = scales;
  }
  if (!prompt) return;
  const int64_t size = block ? block : usual_block, rows = array_size(q->batch, q->heads, 1);
  const int64_t bytes = array_size(rows, parts(q->len, size), parts(k->len, size));
  if (bytes >= 0) buffer_make(&j->b[KEYS_INDEX], attn_bhtd(NULL, ATTN_I8, 1, 1, 1, bytes), 0);
}

static void fuzz_keep(input *in, job *j, store *s) {
  selection_args *a = (selection_args *)j->args;
  attn_tensor view[KEYS_TENSORS];
  memset(view, 0, sizeof view);
  view[KEYS_K] = f32_view(in, below(in, 3), 1 + below(in, 3), below(in, 150), 1 + below(in, 3), 0);
  make_buffers(in, j, view, KEYS_TENSORS);
  const attn_tensor *t = &j->b[KEYS_K].view;
  a->choose.capacity = chance(in, 12) ? nasty_int(in) : below(in, 2) * 20 + below(in, 150);
  a->choose.has_recent = !chance(in, 4);
  a->choose.recent = some(in, 20);
  if (chance(in, 3)) a->choose.kv_len = make_lengths(in, s, t->batch, t->len);
  const int64_t capacity = a->choose.capacity ? a->choose.capacity : 320;
  if (!make_words(&j->b[KEYS_INDEX], array_size(t->batch, t->heads, capacity)))
    j->runnable &= capacity < 0;
}

/* Rows that move, of any type, with numbers of their own: what store_codes stores is not written. */
static void make_moved(input *in, job *j, int at, int scale, attn_scales *s, attn_tensor t) {
  t.dtype = (attn_dtype)below(in, ATTN_DTYPE_COUNT);
  if (t.dtype == ATTN_I4 && !chance(in, 16)) widen(&t);
  if (chance(in, 8)) flaw_view(in, &t);
  j->runnable &= buffer_make(&j->b[at], t, below(in, 4));
  filler f = {take(in), 0};
  for (size_t i = 0; i < j->b[at].size; i++) j->b[at].base[i] = (uint8_t)filler_next(&f);
  if (!buffer_full(&j->b[at]) || t.dtype <= ATTN_BF16) return;
  s->group = chance(in, 12) ? nasty_int(in) : 32 * below(in, 3);
  const int64_t groups = s->group > 0 ? parts(t.dim, s->group) : 1;
  attn_tensor rows = make_view(in, ATTN_F32, t.batch, t.heads, t.len, groups, 1);
  s->stride_batch = rows.stride_batch, s->stride_head = rows.stride_head;
  s->stride_len = rows.stride_len;
  const int which = below(in, 8);
  if (which != 7) j->runnable &= buffer_make(&j->b[scale], rows, 0);
  if (t.dtype != ATTN_E4M3 && which < 3) j->runnable &= buffer_make(&j->b[scale + 1], rows, 0);
  filler x = {take(in), 0};
  buffer_fill(&j->b[scale], &x);
  buffer_fill(&j->b[scale + 1], &x);
  if (chance(in, 16)) s->stride_head = nasty_int(in), j->runnable = 0;
}

static void fuzz_evict(input *in, job *j, store *s) {
  selection_args *a = (selection_args *)j->args;
  const int64_t batch = below(in, 3), heads = 1 + below(in, 3), t = below(in, 100);
  const int with = below(in, 8);
  attn_tensor k = any_view(in, batch, heads, t, 1 + below(in, 80), 1);
  attn_tensor v = any_view(in, batch, heads, t, 1 + below(in, 80), 1);
  make_moved(in, j, E_K, E_KS, &a->evict.k_scales, k);
  if (with & 1) make_moved(in, j, E_V, E_VS, &a->evict.v_scales, v);
  if (with & 2) {
    attn_tensor more = any_view(in, batch, heads, t, 1 + below(in, 4), 1);
    if (chance(in, 16)) flaw_view(in, &more);
    j->runnable &= buffer_make(&j->b[E_MORE], more, below(in, 4));
  }
  const attn_tensor of = j->b[E_K].view;
  if (with & 4) make_ints(in, &j->b[E_PLACES], array_size(of.batch, of.heads, of.len), 0, 1000);
  a->capacity = some(in, (int)t + 4);
  const int64_t sets = array_size(of.batch, of.heads, 1), all = array_size(sets, a->capacity, 1);
  int32_t *kept = (int32_t *)make_words(&j->b[E_KEPT], all);
  for (int64_t h = 0; kept && a->capacity > 0 && h < sets; h++) {
    int64_t n = a->capacity;
    const int32_t *rows = store_ascending(in, s, &n, of.len);
    for (int64_t r = 0; r < a->capacity; r++) kept[h * a->capacity + r] = r < n ? rows[r] : -1;
    if (n > 0 && chance(in, 8)) kept[h * a->capacity + n - 1] = (int32_t)of.len;
  }
}

static void fuzz_selection(input *in) {
  selection_args a;
  store s = {NULL, 0};
  memset(&a, 0, sizeof a);
  a.kind = below(in, SELECTION_KINDS);
  job j = {.name = "selection of keys",
           .outputs = a.kind == EVICT ? E_KEPT : KEYS_Q,
           .runnable = 1,
           .bare = a.kind == EVICT,
           .args = &a,
           .call = call_selection,
           .workspace = workspace_selection};
  switch (a.kind) {
    case MOBA:
    case QUEST:
    case DSA:
    case NSA: fuzz_selected(in, &j, &s); break;
    case KEY_BLOCKS:
    case NSA_COMPRESS: fuzz_standing(in, &j, &s); break;
    case EVICT_CHOOSE: fuzz_keep(in, &j, &s); break;
    case EVICT: fuzz_evict(in, &j, &s); break;
    default: fuzz_estimate(in, &j, &s); break;
  }
  j.tame = 0;
  job_run(&j, in);
  store_free(&s);
}

#endif
