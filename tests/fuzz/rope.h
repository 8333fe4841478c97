/* rope.h owns the decoding of bytes into a description of rotations, for whoever takes one. */

#ifndef FUZZ_ROPE_H
#define FUZZ_ROPE_H

#include "job.h"
#include "store.h"

/* Cosines and sines of up to 12 positions: any numbers are legal. */
static void make_angles(input *in, store *s, attn_tensor *t, int64_t rows, int64_t pairs) {
  const int64_t stride = pairs + below(in, 3);
  filler f = {take(in), chance(in, 8) ? 11 : 0};
  float *x = (float *)store_take(s, (size_t)(rows * stride) * sizeof *x);
  for (int64_t i = 0; i < rows * stride; i++) x[i] = filler_number(&f);
  *t = attn_bhtd(x, ATTN_F32, 1, 1, rows, pairs);
  t->stride_len = stride;
  if (chance(in, 24)) t->dim = pairs / 2;
  if (chance(in, 24)) t->len = nasty_int(in) < rows ? 0 : rows;
}

/* A norm of queries and keys, mostly a legal one. */
static void make_qk_norm(input *in, store *s, attn_qk_norm *p, int64_t heads, int64_t kv_heads,
                         int64_t dim, int *tame) {
  p->kind = (attn_qk_norm_kind)below(in, ATTN_QK_NORM_KINDS);
  if (chance(in, 16)) p->kind = (attn_qk_norm_kind)(nasty_int(in) & 0xff);
  p->gain_by_head = below(in, 2), p->gain_less_one = below(in, 2), p->after = below(in, 2);
  if (chance(in, 3)) p->eps = chance(in, 8) ? nasty_float(in) : (float)below(in, 3) / 4;
  const int by_head = p->gain_by_head || p->kind == ATTN_QK_NORM_RMS_ALL;
  if (below(in, 2))
    p->q_gain = store_floats(in, s, array_size(by_head ? heads : 1, dim, 1), -1, 2, tame);
  if (below(in, 2))
    p->k_gain = store_floats(in, s, array_size(by_head ? kv_heads : 1, dim, 1), -1, 2, tame);
  if (p->kind == ATTN_QK_NORM_L2 ? below(in, 2) : chance(in, 32))
    p->temperature = store_floats(in, s, array_size(heads, 1, 1), -4, 4, tame);
}

/* A description for rows of `dim` columns and `batch` times `len` positions, mostly a legal one. */
static void make_rope(input *in, job *j, store *s, attn_rope_params *p, int64_t batch, int64_t len,
                      int64_t dim) {
  p->layout =
      chance(in, 16) ? (attn_rope_layout)(nasty_int(in) & 0xff) : (attn_rope_layout)below(in, 2);
  p->inverse = below(in, 2);
  if (chance(in, 4)) p->rotary_dim = chance(in, 4) ? nasty_int(in) : 2 * below(in, 36);
  p->has_rotary_dim = chance(in, 4);
  if (chance(in, 4)) p->base = chance(in, 4) ? (double)nasty_float(in) : 500000.0;
  p->start = chance(in, 8) ? nasty_int(in) : below(in, 100) - 50;
  p->factors = (p->has_rotary_dim || p->rotary_dim ? p->rotary_dim : dim) / 2;
  if (p->factors > 70 || p->factors < 0 || chance(in, 16)) p->factors = 3;
  const int64_t pairs = p->factors;
  int axes = 1;
  const int table = chance(in, 4);
  if (chance(in, 2)) { /* a family */
    if (!table || chance(in, 16))
      p->type = (attn_rope_type)below(in, ATTN_ROPE_TYPES + (chance(in, 16) ? 2 : 0));
    p->factor = chance(in, 8) ? (double)nasty_float(in) : 1 + below(in, 8);
    p->max_position_embeddings = chance(in, 16) ? nasty_int(in) : 1 + below(in, 9000);
    p->original_max_position_embeddings = chance(in, 16) ? nasty_int(in) : 2 + below(in, 9000);
    p->low_freq_factor = 1, p->high_freq_factor = chance(in, 8) ? (double)nasty_float(in) : 4;
    p->sequence_len = chance(in, 16) ? nasty_int(in) : 1 + below(in, 9000);
    p->no_truncate = below(in, 2), p->mscale = below(in, 3), p->mscale_all_dim = below(in, 3);
    double *by = (double *)store_take(s, 72 * sizeof *by);
    for (int i = 0; i < 72; i++) by[i] = 1 + i / 4.0;
    p->short_factor = by, p->long_factor = by + below(in, 2);
    if (!table && chance(in, 4)) p->xpos = chance(in, 8) ? (double)nasty_float(in) : 512;
    if (chance(in, 4)) p->keys = 1;
    if (chance(in, 4)) {
      p->mrope_section[1] = below(in, 4), p->mrope_section[2] = below(in, 4);
      p->mrope_section[0] =
          chance(in, 16) ? nasty_int(in) : pairs - p->mrope_section[1] - p->mrope_section[2];
      p->mrope_interleaved = below(in, 2), axes = 3;
    }
    if (chance(in, 8)) p->attention_factor = (double)nasty_float(in);
  }
  if (chance(in, 4) && (axes == 1 || chance(in, 16))) {
    p->axial = 1, axes = axes == 1 ? 2 : 3;
    if (!chance(in, 4)) p->factors = pairs / 2;
  }
  const int64_t rows = table ? 1 + below(in, 12) : 0;
  if (table) {
    make_angles(in, s, &p->cos, rows, pairs);
    make_angles(in, s, &p->sin, rows, pairs);
    if (chance(in, 16)) p->sin.data = NULL;
    if (!chance(in, 4)) p->start = below(in, 4), p->attention_factor = 0;
  }
  if (!(table || p->axial || chance(in, 4)) || len < 0 || len > ROWS_MAX || batch < 0 || batch > 8)
    return;
  p->positions_per_batch = below(in, 2);
  const size_t n = (size_t)(axes * len * (p->positions_per_batch ? batch : 1));
  int64_t *positions = (int64_t *)store_take(s, n * sizeof *positions);
  const int most = table ? (int)rows : 200;
  for (size_t i = 0; i < n; i++)
    positions[i] = chance(in, 64) ? nasty_int(in) : below(in, most) * (table ? 1 : below(in, 200));
  p->positions = positions;
  if (!table && chance(in, 3)) { /* the same bytes as numbers of any kind */
    p->positions = chance(in, 8) ? positions : NULL;
    p->real_positions = (const double *)(const void *)positions;
  }
  j->tame &= p->real_positions == NULL;
}

#endif
