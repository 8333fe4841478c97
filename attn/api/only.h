/* api/only.h owns the choice of what is there. A program may name the families that it wants, before the
 * first inclusion and the same in all its files:
 *
 *   #define ATTN_ONLY (ATTN_FAMILY_SDPA | ATTN_FAMILY_CACHE)
 *
 * The others are then neither declared nor compiled; a call of theirs is an error of the compiler that
 * names the family. What a family needs of others comes with it. ATTN_HAS_<family> is 1 where it is
 * there. With ATTN_STATIC none of this is needed: a file then carries what it calls. */

/* Primary operations: attn_sdpa and attn_merge, of f32, f16 and bf16, with masks, windows and lengths; more
 * terms of its scores (calls/score.h); its rows of 8 and 4 bits, and attn_quantize; its schedules, and
 * patterns; the others by their names. */
#define ATTN_FAMILY_SDPA 0x000001u
#define ATTN_FAMILY_TERMS 0x000002u
#define ATTN_FAMILY_QUANTIZE 0x000004u
#define ATTN_FAMILY_PATTERN 0x000008u
#define ATTN_FAMILY_CACHE 0x000010u
#define ATTN_FAMILY_RELU 0x000020u
#define ATTN_FAMILY_EDGES 0x000040u
#define ATTN_FAMILY_DENSE 0x000080u    /* attn_gemm, attn_layer_norm, attn_activate */
#define ATTN_FAMILY_POSITION 0x000100u /* attn_rope, attn_sinusoid, .. */
#define ATTN_FAMILY_SEQUENCE 0x000200u /* attn_pool, attn_convolve, attn_top_k, attn_pinv, .. */
/* Mechanisms: api/families/<family>/. */
#define ATTN_FAMILY_MULTIHEAD 0x000400u
#define ATTN_FAMILY_SPARSE 0x000800u
#define ATTN_FAMILY_CONTENT 0x001000u
#define ATTN_FAMILY_LINEAR 0x002000u
#define ATTN_FAMILY_COMPRESSION 0x004000u
#define ATTN_FAMILY_LOWRANK 0x008000u
#define ATTN_FAMILY_PRIORS 0x010000u
#define ATTN_FAMILY_MAPS 0x020000u
#define ATTN_FAMILY_HEADS 0x040000u
#define ATTN_FAMILY_MEMORY 0x080000u
#define ATTN_FAMILY_BLOCKS 0x100000u
#define ATTN_FAMILY_DEPTH 0x200000u
#define ATTN_FAMILY_MIXERS 0x400000u
/* Products of numbers below f32: params.compute of attn_sdpa, attn_cache_sdpa and attn_gemm. */
#define ATTN_FAMILY_LOW 0x800000u
#define ATTN_FAMILY_RESHAPED 0x1000000u  /* attn_reshaped, attn_path_turn, attn_differential */
#define ATTN_FAMILY_SELECTION 0x2000000u /* api/families/selection/ */
#define ATTN_FAMILY_LATENT 0x4000000u    /* attn_mla, attn_tpa */
#define ATTN_FAMILY_TRAINING 0x8000000u  /* api/families/training/ */
#define ATTN_FAMILY_ALL 0xfffffffu

#ifndef ATTN_ONLY
#define ATTN_ONLY ATTN_FAMILY_ALL
#endif

/* Each with those that need it. Everything from MULTIHEAD on, but LINEAR, is made of other calls. */
#define ATTN_HAS(families) (((ATTN_ONLY) & (families)) != 0)
#define ATTN_HAS_COMPOSED ATTN_HAS(0xe7fdc00u)
#define ATTN_HAS_SPARSE ATTN_HAS(ATTN_FAMILY_SPARSE)
#define ATTN_HAS_CONTENT ATTN_HAS(ATTN_FAMILY_CONTENT)
#define ATTN_HAS_LINEAR ATTN_HAS(ATTN_FAMILY_LINEAR)
#define ATTN_HAS_COMPRESSION ATTN_HAS(ATTN_FAMILY_COMPRESSION)
#define ATTN_HAS_LOWRANK ATTN_HAS(ATTN_FAMILY_LOWRANK)
#define ATTN_HAS_PRIORS ATTN_HAS(ATTN_FAMILY_PRIORS)
#define ATTN_HAS_MAPS ATTN_HAS(ATTN_FAMILY_MAPS)
#define ATTN_HAS_HEADS ATTN_HAS(ATTN_FAMILY_HEADS)
#define ATTN_HAS_MEMORY ATTN_HAS(ATTN_FAMILY_MEMORY)
#define ATTN_HAS_BLOCKS ATTN_HAS(ATTN_FAMILY_BLOCKS)
#define ATTN_HAS_DEPTH ATTN_HAS(ATTN_FAMILY_DEPTH)
#define ATTN_HAS_MIXERS ATTN_HAS(ATTN_FAMILY_MIXERS)
#define ATTN_HAS_SELECTION ATTN_HAS(ATTN_FAMILY_SELECTION)
#define ATTN_HAS_LATENT ATTN_HAS(ATTN_FAMILY_LATENT)
#define ATTN_HAS_TRAINING ATTN_HAS(ATTN_FAMILY_TRAINING)
#define ATTN_HAS_LINEAR_AND_TRAINING (ATTN_HAS_LINEAR && ATTN_HAS_TRAINING)
#define ATTN_HAS_MULTIHEAD                                                                       \
  ATTN_HAS(ATTN_FAMILY_MULTIHEAD | ATTN_FAMILY_HEADS | ATTN_FAMILY_MEMORY | ATTN_FAMILY_BLOCKS | \
           ATTN_FAMILY_DEPTH | ATTN_FAMILY_MIXERS | ATTN_FAMILY_COMPRESSION)
#define ATTN_HAS_MULTIHEAD_AND_TRAINING (ATTN_HAS_MULTIHEAD && ATTN_HAS_TRAINING)
#define ATTN_HAS_HEADS_AND_TRAINING (ATTN_HAS_HEADS && ATTN_HAS_TRAINING)
#define ATTN_HAS_SPARSE_AND_TRAINING (ATTN_HAS_SPARSE && ATTN_HAS_TRAINING)
#define ATTN_HAS_BLOCKS_AND_TRAINING (ATTN_HAS_BLOCKS && ATTN_HAS_TRAINING)
#define ATTN_HAS_SEQUENCE                                                         \
  ATTN_HAS(ATTN_FAMILY_SEQUENCE | ATTN_FAMILY_CONTENT | ATTN_FAMILY_COMPRESSION | \
           ATTN_FAMILY_LOWRANK | ATTN_FAMILY_TRAINING)
#define ATTN_HAS_POSITION \
  (ATTN_HAS(ATTN_FAMILY_POSITION | ATTN_FAMILY_LATENT) || ATTN_HAS_MULTIHEAD)
#define ATTN_HAS_DENSE (ATTN_HAS(ATTN_FAMILY_DENSE | ATTN_FAMILY_SEQUENCE) || ATTN_HAS_COMPOSED)
#define ATTN_HAS_EDGES ATTN_HAS(ATTN_FAMILY_EDGES | ATTN_FAMILY_CONTENT | ATTN_FAMILY_SELECTION)
#define ATTN_HAS_EDGES_AND_TRAINING (ATTN_HAS_EDGES && ATTN_HAS_TRAINING)
#define ATTN_HAS_RELU ATTN_HAS(ATTN_FAMILY_RELU)
#define ATTN_HAS_RELU_AND_TRAINING (ATTN_HAS_RELU && ATTN_HAS_TRAINING)
#define ATTN_HAS_RESHAPED ATTN_HAS(ATTN_FAMILY_RESHAPED)
#define ATTN_HAS_CACHE ATTN_HAS(ATTN_FAMILY_CACHE | ATTN_FAMILY_LATENT | ATTN_FAMILY_SELECTION)
#define ATTN_HAS_PATTERN (ATTN_HAS(ATTN_FAMILY_PATTERN) || ATTN_HAS_COMPOSED)
#define ATTN_HAS_QUANTIZE ATTN_HAS(ATTN_FAMILY_QUANTIZE)
#define ATTN_HAS_LOW ATTN_HAS(ATTN_FAMILY_LOW)
#define ATTN_HAS_TERMS (ATTN_HAS(ATTN_FAMILY_TERMS) || ATTN_HAS_COMPOSED)
#define ATTN_HAS_SDPA                                                                           \
  (ATTN_HAS(ATTN_FAMILY_SDPA | ATTN_FAMILY_TERMS | ATTN_FAMILY_QUANTIZE | ATTN_FAMILY_PATTERN | \
            ATTN_FAMILY_CACHE | ATTN_FAMILY_RELU | ATTN_FAMILY_EDGES | ATTN_FAMILY_SEQUENCE |   \
            ATTN_FAMILY_LINEAR | ATTN_FAMILY_LOW | ATTN_FAMILY_RESHAPED) ||                     \
   ATTN_HAS_COMPOSED)
