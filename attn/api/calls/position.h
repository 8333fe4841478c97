/* api/calls/position.h owns family B: positions. */

/* Rows have the positions start + i, or those of an array of whole numbers or, where that has a meaning,
 * of real ones (fractions interpolate: a context stretched by 4 has steps of 0.25); [T], or [B,T] when
 * positions_per_batch. A real position that is a whole number gives the bits of the whole number. */

/* Which columns form a rotated pair. */
typedef enum attn_rope_layout {
  ATTN_ROPE_INTERLEAVED = 0, /* (2m, 2m+1), the paper */
  ATTN_ROPE_HALF             /* (m, m + rotary_dim/2), GPT-NeoX, Llama weights of many engines */
} attn_rope_layout;

/* What is done to the frequencies f_m = base^(-2m/r), m < r/2, r = rotary_dim; which fields each must have. */
typedef enum attn_rope_type {
  ATTN_ROPE_DEFAULT = 0, /* nothing */
  ATTN_ROPE_LINEAR,      /* factor */
  ATTN_ROPE_NTK,         /* factor */
  ATTN_ROPE_DYNAMIC,     /* factor, max_position_embeddings, sequence_len */
  ATTN_ROPE_LLAMA3, /* factor, original_max_position_embeddings, low_freq_factor, high_freq_factor */
  ATTN_ROPE_YARN,   /* original_max_position_embeddings; factor or max_position_embeddings */
  ATTN_ROPE_LONGROPE, /* original_max_position_embeddings, short_factor, long_factor, factors, sequence_len;
                          * max_position_embeddings, factor or attention_factor */
  ATTN_ROPE_TYPES
} attn_rope_type;

/* How rows are rotated: {0} is the paper's. Fields with the names of a model's configuration
 * ("rope_scaling", "rope_parameters") mean what they mean there; 0 = not given, and those that a type does not
 * use may be there. */
typedef struct attn_rope_params {
  int64_t rotary_dim; /* columns that rotate, even: head_dim partial_rotary_factor; 0 = dim */
  int has_rotary_dim; /* 1: that number holds, 0 included: none */
  double base;        /* rope_theta; 0 = 10000 */
  attn_rope_layout layout;
  int inverse;                  /* 1: rotate back, with the same factor: the transpose */
  int64_t start;                /* position of row 0, if positions is null; may be negative */
  const int64_t *positions;     /* [T], or [B,T] when positions_per_batch */
  const double *real_positions; /* in place of positions: any finite numbers */
  int positions_per_batch;
  attn_rope_type type; /* rope_type: attn_rope_type_of */
  double factor;       /* at least 1 */
  int64_t max_position_embeddings;
  int64_t original_max_position_embeddings;
  double low_freq_factor, high_freq_factor;
  double beta_fast, beta_slow; /* 0 = 32 and 1 */
  int no_truncate;             /* 1: "truncate": false */
  double mscale, mscale_all_dim;
  double attention_factor;                  /* 0 = that of the type; at most 1000 */
  const double *short_factor, *long_factor; /* [factors] */
  int64_t factors;                          /* rotary_dim / 2 */
  int64_t sequence_len;                     /* tokens of the whole sequence, cached ones too */
  int64_t mrope_section[3]; /* pairs of the positions t, h, w; all 0 = one position a row */
  int mrope_interleaved;    /* 1: t, h, w take turns */
  int axial;                /* 1: two positions a row, h and w, a half of the pairs each */
  double xpos;              /* scale base of xPos, 512 in the paper; 0 = none */
  int keys;                 /* 1: the rows are keys, which xPos treats as the inverse of queries */
  attn_tensor cos, sin;     /* f32 [1,1,n,r/2] in place of base, type and xpos, a row a position */
  const attn_qk_norm *norm; /* null = none: rows are normed, too; keys says with which gain */
} attn_rope_params;

/* Rows of a table of learned vectors. */
typedef struct attn_learned_params {
  int64_t start; /* row of the table for row 0, if positions is null */
  /* [T], or [B,T] when positions_per_batch: rows of the table, token numbers, say; repeats are legal */
  const int64_t *positions;
  int positions_per_batch;
} attn_learned_params;

#if ATTN_HAS_POSITION
/* Rotary position embedding of queries or keys.
 *
 *   phi = position * f_m,  m = 0..r/2-1;  f_m = base^(-2m/r) for the default type
 *   y_a = a (x_a cos phi - x_b sin phi),  y_b = a (x_a sin phi + x_b cos phi)
 *
 *   LINEAR    f / factor
 *   NTK       base factor^(r/(r-2)) in place of base
 *   DYNAMIC   base (factor n/M - (factor - 1))^(r/(r-2)), n = max(sequence_len, M)
 *   LLAMA3    f / factor where y < 0, f where y > 1, between (1-y) f/factor + y f;
 *             y = (orig f/(2 pi) - low) / (high - low)
 *   YARN      f (1-ramp) + f/factor ramp, ramp = clip((m - lo) / (hi - lo), 0, 1); lo = max(floor d(beta_fast), 0),
 *             hi = min(ceil d(beta_slow), r-1), 0.001 more if equal; d(n) = r log(orig/(2 pi n)) / (2 log base).
 *             factor 0 = M/orig
 *   LONGROPE  f / long_factor[m] if sequence_len > orig, else f / short_factor[m]
 *
 *   M = max_position_embeddings, orig = original_max_position_embeddings. a is attention_factor, or for
 *   YARN ms(mscale)/ms(mscale_all_dim) where both are given, else ms(1), ms = attn_rope_mscale of factor; for
 *   LONGROPE sqrt(1 + log F / log orig), F = M/orig, or factor without M, and 1 for F <= 1; else 1. As it is
 *   on queries and on keys, scores have its square. DYNAMIC and LONGROPE take one length for the whole
 *   sequence, whatever the position: when it grows past a mark, keys rotated before are stale. Keep those unrotated.
 *
 * Several positions a row: with mrope_section [t,h,w] (sum r/2) positions are [3,T] ([3,B,T] per batch); the
 *   first t pairs turn by the first, and so on; interleaved, pair m turns by h if m mod 3 = 1 and m < 3 h, by w
 *   if m mod 3 = 2 and m < 3 w, else by t. axial (vision): positions [2,T] ([2,B,T]), must be given; r is a multiple of
 *   4, the first r/4 pairs turn by h, the others by w, both with the frequencies of width r/2 (factors = r/4).
 *   Without positions all are start + i.
 * xPos: a of pair m is also z^(p/xpos) for queries, z^(-p/xpos) for keys, z = (2m/r + 0.4)/1.4. Scores do not
 *   change when all positions are shifted; positions reach from -64 xpos to 64 xpos, so centre longer ones.
 * Tables: cosines and sines of angles (a in them, attention_factor absent); positions are their rows.
 *
 * norm: y = the rotation of norm(x), or with norm.after norm(the rotation of x), with q_gain and temperature, or
 *   with keys = 1 k_gain; rotary_dim = 0 with has_rotary_dim = 1 norms alone. Rows of RMS, RMS_ALL and LAYER have
 *   the bits of attn_rms_norm or attn_layer_norm and attn_rope one after the other, over f32. NaN then reaches all
 *   of its norm.
 *
 * Shapes: x, y [B,H,T,d], any storage types; columns rotary_dim..d-1 are copied. rotary_dim = d needs d even.
 * Aliasing: y may be x with the same strides and type (in place), else they share no memory.
 * Queries behind a cache have start = Tk - Tq. Angles are formed and reduced in double, so that
 *   positions up to 10^6 and beyond keep an error below 2e-7 of a, real ones too.
 * Memory: attn_rope_workspace bytes, O(rotary_dim) per worker; norm: and 16 rows, with RMS_ALL those of all heads.
 *   Empty: B, H or T of 0 is a no-op.
 * NaN: stays in its pair; columns from rotary_dim on keep their bits when the types are equal. Errors: NULL, DTYPE,
 *   SHAPE (also of a table, or factors), STRIDE, RANGE (rotary_dim, layout, type, sections, start beyond 2^61, a
 *   position outside the table or xPos), VALUE (a number that the type needs is missing or impossible, factor < 1, a
 *   real position that is not finite; norm.eps, norm.temperature), RANGE also: kind and flags of norm, a temperature
 *   without L2; NULL also: positions and real_positions exclude each other, OVERLAP, OVERFLOW, WORKSPACE, MEMORY,
 *   ISA, ENV, CTX, ALIGN; outputs untouched.
 * Determinism: the same bits for every tier but scalar and any worker count; a row's rotation
 *   depends on its position alone. Cost: norm: 1.5 to 1.8 times that without (rows of 64, in the cache). 6 flops a
 *   pair, and 6 multiplications per position and m, shared by all heads (and by all batch entries unless
 *   positions_per_batch), whatever the type.
 * Source: Su et al. 2021, arXiv 2104.09864; linear: Chen et al. 2023, arXiv 2306.15595; YaRN, and NTK in its
 *   section 3: Peng et al. 2023, arXiv 2309.00071; Llama 3.1: arXiv 2407.21783; LongRoPE: Ding et al. 2024, arXiv
 *   2402.13753; M-RoPE: Wang et al. 2024, arXiv 2409.12191, interleaved: Bai et al. 2025, arXiv 2511.21631; xPos:
 *   Sun et al. 2022, arXiv 2212.10554. Where papers and published code differ, as the code that published weights
 *   run on. */
ATTN_DEF attn_status attn_rope(attn_tensor y, attn_tensor x, const attn_rope_params *params,
                               attn_ctx *ctx);
ATTN_DEF size_t attn_rope_workspace(attn_tensor y, attn_tensor x, const attn_rope_params *params,
                                    const attn_ctx *ctx);

/* The frequencies f_m that attn_rope has for rows of width dim into frequencies[r/2], and its a (without xPos)
 * into *attention_factor; either may be null. Positions are not read. params null = the default. Errors: SHAPE (dim
 *   < 1), RANGE, VALUE, NULL, ALIGN, as attn_rope; RANGE also with tables, which have no frequencies; nothing
 *   written. */
ATTN_DEF attn_status attn_rope_frequencies(double *frequencies, double *attention_factor,
                                           const attn_rope_params *params, int64_t dim);

/* 0.1 mscale log(factor) + 1, or 1 for factor <= 1. DeepSeek's models multiply the scale of attn_sdpa by
 * attn_rope_mscale(factor, mscale_all_dim)^2. */
ATTN_DEF double attn_rope_mscale(double factor, double mscale);

/* The type that a configuration calls rope_type (older ones: type): "default", "linear", "ntk", "dynamic",
 * "llama3", "yarn", "longrope" (once "su"); "mrope" is the default with mrope_section. ATTN_ROPE_TYPES, which attn_rope
 * rejects, for any other word and for null. */
ATTN_DEF attn_rope_type attn_rope_type_of(const char *word);

/* The ALiBi slopes of the paper for n heads into slopes[n]: with c the largest power of two <= n,
 * 2^(-8(h+1)/c) for h < c, then 2^(-4(2r+1)/c) for r = 0..n-c-1. Pass them as
 * attn_sdpa_params.alibi. ATTN_E_NULL without slopes, ATTN_E_SHAPE for n < 1.
 * Source: Press et al. 2021, arXiv 2108.12409. */
ATTN_DEF attn_status attn_alibi_slopes(float *slopes, int64_t n);

/* T5's bucket of a signed distance (key minus query), 0 .. buckets - 1.
 *
 *   n = buckets, or buckets / 2 (rounded down) when bidirectional;  m = n / 2, rounded down
 *   a = max(-distance, 0), or |distance| when bidirectional
 *   bucket = a for a < m, else min(n - 1, m + floor((n - m) log(a / m) / log(max_distance / m)));
 *   bidirectional: plus n when distance > 0
 *
 * buckets 0 = 32, max_distance 0 = 128. The floor is exact: bucket m + k begins at the smallest a
 *   with a^(n-m) >= m^(n-m-k) max_distance^k, in whole numbers. With the defaults the logarithmic
 *   buckets begin at 16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113, bidirectional
 *   at 8, 12, 16, 23, 32, 46, 64, 91; all distances from max_distance on share the last one.
 * Returns -1 for invalid arguments: m < 1 (fewer than 2 buckets, 4 bidirectional), max_distance <=
 *   m, more than 1024 buckets, max_distance >= 2^31. Any distance is valid. Cost: some hundred
 *   flops. Source: Raffel et al. 2019, arXiv 1910.10683. */
ATTN_DEF int64_t attn_t5_bucket(int64_t distance, int bidirectional, int64_t buckets,
                                int64_t max_distance);

/* DeBERTa's bucket of a signed distance (query minus key there), -2m .. 2m, m = buckets / 2 rounded down.
 *
 *   a = |distance|;  bucket = distance for a <= m, else sign(distance) (m + ceil((m - 1) log(a / m) /
 *   log((max_distance - 1) / m))), at most 2m, which is what lies beyond max_distance - 1
 *
 * The ceiling is exact, in whole numbers; the released code has logarithms in f32 and ends at no 2m, but clips to the
 *   rows of its tables. buckets is a model's position_buckets, max_distance its max_relative_positions.
 * Returns INT64_MIN for invalid arguments: buckets outside 4 .. 1024, max_distance <= m + 1 or >= 2^31.
 * Any distance is valid. Cost: some hundred flops. Source: He et al. 2021, arXiv 2111.09543 and its code. */
ATTN_DEF int64_t attn_deberta_bucket(int64_t distance, int64_t buckets, int64_t max_distance);

/* Which columns hold which sines and cosines of a sinusoidal encoding of width d. */
typedef enum attn_sinusoid_layout {
  ATTN_SINUSOID_INTERLEAVED = 0, /* (sin, cos) pairs, the paper; odd d ends in a sine */
  ATTN_SINUSOID_HALVES,          /* ceil(d/2) sines, then the cosines: Transformer-XL's code */
  ATTN_SINUSOID_T2T /* floor(d/2) sines, as many cosines, odd d: a 0; frequencies end at 1/base */
} attn_sinusoid_layout;

typedef struct attn_sinusoid_params {
  int64_t start;                /* position of row 0, if positions is null; may be negative */
  const int64_t *positions;     /* [T], or [B,T] when positions_per_batch */
  const double *real_positions; /* in place of positions: any finite numbers */
  int positions_per_batch;
  double base; /* 0 = 10000 */
  attn_sinusoid_layout layout;
  float x_scale; /* 0 = 1; ATTN_ZERO = 0: x is not read. The paper has sqrt(d) here */
} attn_sinusoid_params;

/* Sinusoidal position encoding, added to token vectors or by itself.
 *
 *   w_m = base^(-2m/d); t2t: base^(-m / max(floor(d/2) - 1, 1))
 *   PE(p, column of m) = sin(p w_m) and cos(p w_m), columns by layout
 *   y[b,h,i,:] = x_scale x[b,h,i,:] + PE(position of i, :)
 *
 * Shapes: y, x [B,H,T,d], any storage types; H is 1 for token vectors. x.data null: y is the
 *   table. Aliasing: y may be x with the same strides and type (in place), else they share no
 *   memory.
 * Angles are formed and reduced in double, so that positions up to 10^6 and beyond keep an error
 *   below 1e-6; every 16th position has its sines made anew, rows between turn that row in f32. A
 *   fractional position has its own.
 * Memory: attn_sinusoid_workspace bytes, O(d) per worker. Empty: B, H or T of 0 is a no-op.
 * NaN: stays in its element. Errors: NULL, DTYPE, SHAPE, STRIDE, RANGE (layout, start beyond 2^61),
 *   VALUE (base, x_scale, a real position that is not finite), OVERLAP, OVERFLOW, WORKSPACE, MEMORY,
 *   ISA, ENV, CTX, ALIGN; outputs untouched.
 * Determinism: the same bits for every tier but scalar and any worker count; a row's encoding
 *   depends on its position alone. Cost: 4 flops an element of a position, shared by all heads and
 *   batch entries (unless positions_per_batch), and 2 an element of y: bound by memory.
 * Source: Vaswani et al. 2017, arXiv 1706.03762. */
ATTN_DEF attn_status attn_sinusoid(attn_tensor y, attn_tensor x, const attn_sinusoid_params *params,
                                   attn_ctx *ctx);
ATTN_DEF size_t attn_sinusoid_workspace(attn_tensor y, attn_tensor x,
                                        const attn_sinusoid_params *params, const attn_ctx *ctx);

typedef struct attn_universal_signal_params {
  int64_t step; /* t; the paper counts from 1. 0 is not neutral: it adds 1 to the cosines */
  attn_sinusoid_params position;
} attn_universal_signal_params;

/* The position-and-time signal of the Universal Transformer, added at every recurrence step:
 *
 *   y[b,h,i,:] = x_scale x[b,h,i,:] + PE(position of i, :) + PE(step, :)
 *
 * PE, shapes, aliasing, memory, NaN, errors (and RANGE: a step beyond 2^61), determinism and cost
 * as attn_sinusoid, with one more addition. The sum of the two encodings is rounded once before it
 * meets x, so position and step may change places. Source: Dehghani et al. 2018, arXiv 1807.03819.
 */
ATTN_DEF attn_status attn_universal_signal(attn_tensor y, attn_tensor x,
                                           const attn_universal_signal_params *params,
                                           attn_ctx *ctx);
ATTN_DEF size_t attn_universal_signal_workspace(attn_tensor y, attn_tensor x,
                                                const attn_universal_signal_params *params,
                                                const attn_ctx *ctx);

/* Learned absolute positions: y[b,h,i,:] = x[b,h,i,:] + table[position of i, :], start + i or positions.
 *
 * Shapes: y, x [B,H,T,d] (H is 1 for token vectors), table [1,1,n,d]; storage types are
 *   independent. x.data null: y is the gathered rows. Aliasing: y may be x with the same strides
 *   and type (in place), else y shares no memory with another argument.
 * Memory: none. Empty: B, H or T of 0 is a no-op. NaN: stays in its element.
 * Errors: NULL, DTYPE, SHAPE, STRIDE, RANGE (any position outside 0..n-1: nothing is clamped, all are
 *   checked before the first write), OVERLAP, OVERFLOW, ISA, ENV, CTX, ALIGN; outputs untouched.
 * Determinism: the same bits for every tier and any worker count. Cost: an addition an element.
 * Source: Gehring et al. 2017, arXiv 1705.03122; tables per layer: Al-Rfou et al. 2018, arXiv
 *   1808.04444. */
ATTN_DEF attn_status attn_learned_position(attn_tensor y, attn_tensor x, attn_tensor table,
                                           const attn_learned_params *params, attn_ctx *ctx);
/* Bytes attn_learned_position wants: 0. */
ATTN_DEF size_t attn_learned_position_workspace(attn_tensor y, attn_tensor x, attn_tensor table,
                                                const attn_learned_params *params,
                                                const attn_ctx *ctx);
#endif
