/* api/families/mixers/fourier.h owns mixing of tokens without attention by a Fourier transform, and the block of FNet
 * (L1). */

/* How the transform is computed. */
typedef enum attn_fourier_form {
  ATTN_FOURIER_FFT = 0, /* fast transforms along both axes */
  ATTN_FOURIER_GEMM,    /* products with matrices of cosines and sines: for comparison */
  ATTN_FOURIER_COUNT
} attn_fourier_form;

typedef struct attn_fourier_params {
  attn_fourier_form form;
  const int32_t *x_len; /* [B], 0..T: rows from x_len[b] on do not exist; null = T */
} attn_fourier_params;

/* The real part of the two-dimensional discrete Fourier transform of each batch entry, over rows and
 * columns, unnormalised:
 *
 *   y[t,c] = sum_n sum_m x[n,m] cos(2 pi (t n / N + c m / dm)),  n, t < N = x_len[b], c, m < dm
 *
 * Shapes: y, x [B,1,T,dm], each f32, f16 or bf16; any T >= 1 and dm >= 1, each at most 2^27.
 * Lengths: the transform is as long as the entry: rows of x from x_len[b] on are not read, those of y
 *   are 0. A model that transforms padding too has no x_len.
 * Aliasing: y shares memory with nothing.
 * Memory: attn_fourier_workspace bytes. FFT: with R = T and C = dm, or, if such a length n has a prime
 *   factor above 31 (T > 31 always with x_len), the power of 2 that is 2 n - 1 or next above, at most: for
 *   each worker 2 KB and the larger of 256 C + max(16 KB, 128 dm) bytes and of 4 R min(dm / 2 + 64, 256),
 *   the latter up to 2 MB, or 128 R if that is more; tables of 12 bytes for each of R + C, up to 24 for
 *   the power of 2. Half the spectrum, (T / 2 + 1) dm floats an entry, lies in y, or in the workspace where
 *   y is not f32. GEMM: the complex transform of the columns, 8 T dm bytes, matrices of 8 dm^2 and of
 *   max(dm, 96) rows of 8 T, 8 max(T, dm), and those of attn_gemm.
 * Empty: B = 0 does nothing; an entry of length 0 is all 0.
 * NaN and infinity: in a row of x make results of its entry NaN or infinite, but not all that the
 *   formula has: where a transform needs no product, 0 times NaN is left out. Other entries stay clean.
 * Errors: NULL, DTYPE, SHAPE (T or dm < 1, extents that differ, heads), STRIDE, RANGE (x_len,
 *   form), OVERLAP, OVERFLOW, WORKSPACE, MEMORY, ISA, ENV, CTX, ALIGN; y untouched.
 * Error, measured over all small sizes, with s the root of the sum of squares of x's entry, which is the root
 *   mean square of a complex result: FFT: below 1e-7 sqrt(log2(N dm)) s in the root mean square; of one number
 *   below three times that of s + |y| for numbers of mean 0, of s + the largest |y| for any. GEMM: below 5e-8
 *   sqrt(N + dm) s, and of one number likewise. Angles are exact fractions of a turn. y itself may be far
 *   smaller than s: an odd x has y = 0.
 * Determinism: the same bits on avx2, avx512 and neon, any number of workers, and of an entry whatever
 *   the others are.
 * Cost: FFT: about 1.25 N dm log2(N dm) flops, of which only one of y[t,c] and y[-t,-c], which are equal,
 *   is computed. GEMM: 4 N dm (N + dm).
 * Gradient: itself. Its matrix is symmetric, so d_x = attn_fourier(d_y) with the same params.
 * Source: Lee-Thorp et al. 2021, arXiv 2105.03824; mixed radices: Cooley and Tukey 1965, doi
 *   10.1090/S0025-5718-1965-0178586-1; other lengths: Bluestein 1970, doi 10.1109/TAU.1970.1162132. */
ATTN_DEF attn_status attn_fourier(attn_tensor y, attn_tensor x, const attn_fourier_params *params,
                                  attn_ctx *ctx);
ATTN_DEF size_t attn_fourier_workspace(attn_tensor y, attn_tensor x,
                                       const attn_fourier_params *params, const attn_ctx *ctx);

typedef struct attn_fnet_params {
  attn_fourier_params mix;
  attn_norm norm_1, norm_2; /* eps 0 = 1e-5; checkpoints in the style of BERT have 1e-12 */
  attn_feed_forward ff;     /* dm to dm; activation 0 = ATTN_ACT_GELU here */
} attn_fnet_params;

/* A block of FNet: an encoder block whose attention is attn_fourier.
 *
 *   h = LN_1(x + fourier(x)),  y = LN_2(h + ff(h))
 *
 * Shapes, lengths, aliasing, empty, determinism: as attn_fourier. params is required: it has weights.
 * Memory: attn_fnet_workspace bytes: those of attn_fourier or of the feed-forward, whichever are more;
 *   B T dm floats where y is not f32.
 * NaN: as attn_fourier; rows that it leaves clean stay so.
 * Errors also: those of attn_gemm for the weights, VALUE (eps).
 * Cost: attn_fourier's, and 4 B T dm dff flops. Source: Lee-Thorp et al. 2021, arXiv 2105.03824. */
ATTN_DEF attn_status attn_fnet(attn_tensor y, attn_tensor x, const attn_fnet_params *params,
                               attn_ctx *ctx);
ATTN_DEF size_t attn_fnet_workspace(attn_tensor y, attn_tensor x, const attn_fnet_params *params,
                                    const attn_ctx *ctx);
