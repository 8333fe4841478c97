/* tests/families/blocks/block.h owns a call of an encoder or decoder block with random arguments, and its float64 answer. */

#ifndef TESTS_BLOCK_H
#define TESTS_BLOCK_H

#include "layers.h"

typedef enum block_kind { BLOCK_ENCODER, BLOCK_DECODER, BLOCK_STEP } block_kind;

typedef struct block {
  block_kind kind;
  attn_tensor y, x, e;
  attn_block_params p;
  attn_decoder_cache cache; /* of a step, which leaves it as it is */
  promise does;
} block;

typedef struct block_shape {
  block_kind kind;
  int64_t batch, rows, dm, heads, kv_heads, dk, dv, dff;
  int64_t e_rows, de; /* e_rows < 0: no cross attention */
  attn_sublayer sublayer;
  attn_activation act;
  attn_dtype x_type, w_type, y_type;
  int biases, bias_kv;
} block_shape;

block_shape block_plain(block_kind kind, int64_t batch, int64_t rows);
/* The n-th way to stand around the parts of a block: each in turn. */
attn_sublayer block_sublayer(int64_t n, int cross);
block *block_build(const block_shape *shape, test_rng *rng);
/* What y should be. */
cube block_answer(const block *s);
/* Runs it and holds it against the oracle. */
void block_check(block *s, double tolerance, const char *what);
/* Holds y against the oracle of s. */
void block_near(const block *s, attn_tensor y, double tolerance, const char *what);
/* Its weights become codes of 8 or 4 bits; wide: the same block with what they stand for. */
void block_code(block *s, block *wide, attn_dtype type, int64_t group, int turned, int zero,
                test_rng *rng);
/* A cache of so many rows for the block. */
attn_decoder_cache block_cache(const block *s, int64_t room, attn_dtype type, test_layout layout);
/* attn_decoder_start, then x in steps of `first` rows and of one; y becomes what they make. */
void block_decode(const block *s, attn_decoder_cache *cache, attn_tensor y, int64_t first);

#endif
