/* api/calls/sequence.h owns what shortens or searches a sequence, the parts that compressed and low-rank
 * attention are made of: pooling, convolutions, selection, clustering, small inverses.
 *
 * What holds for all of them. Tensors are f32, f16 or bf16 and of any strides unless said otherwise;
 * arithmetic is f32 unless said otherwise. `x_len` are lengths [B], 0 .. x.len, null = x.len: a batch entry
 * gives what the same call on tensors cut to its length gives, and rows of an output beyond that are 0.
 * Errors: ATTN_E_NULL, _DTYPE, _SHAPE, _STRIDE, _RANGE (a parameter or a length out of its range),
 * _VALUE (NaN or infinite where a number is due), _OVERLAP, _OVERFLOW, _WORKSPACE, _MEMORY, _ALIGN, and
 * those of ctx; outputs untouched. Extents B, H or rows of 0 are no-ops that succeed. Bits are the same on
 * avx2, avx512 and neon, for any number of workers and any batch. */

/* ---- pooling -------------------------------------------------------------------------------------*/

#if ATTN_HAS_SEQUENCE
typedef enum attn_pool_kind {
  ATTN_POOL_MEAN = 0,
  ATTN_POOL_MAX,
  ATTN_POOL_DYNAMIC, /* a softmax of weights that the centre row of a block makes */
  ATTN_POOL_COUNT
} attn_pool_kind;

typedef struct attn_pool_params {
  attn_pool_kind kind;
  int64_t kernel;          /* rows of a block; 0 = adaptive segments */
  int64_t stride;          /* from a block to the next, 1 .. kernel; 0 = kernel */
  attn_tensor w;           /* DYNAMIC: [1, 1 or H, d, kernel] */
  attn_tensor bias;        /* DYNAMIC: [1, 1 or H, 1, kernel]; absent = 0 */
  const int32_t *x_len;    /* [B] */
  const int32_t *segments; /* [B], adaptive: 0 .. y.len; null = y.len. Never more than rows */
} attn_pool_params;

/* Blocks of n rows: kernel > 0 ? (n > 0 ? 1 + ceil(max(0, n - kernel) / stride) : 0) : min(n, segments),
 * where segments are asked for here; -1 for parameters that are no good. */
ATTN_DEF int64_t attn_pool_len(int64_t n, int64_t segments, const attn_pool_params *params);

/* Pooling along the sequence: y_m = mean, maximum or weighted sum of the rows of block m, column by column.
 *
 *   adaptive: block m of M is rows [floor(m n / M), floor((m + 1) n / M)), M = min(segments, n)
 *   kernel:   block m is rows [m stride, min(m stride + kernel, n)), M = attn_pool_len
 *   DYNAMIC:  c = min(start + floor((kernel - 1) / 2), end - 1), z = x_c w + bias,
 *             y_m = sum_r softmax(z_0 .. z_(end - start - 1))_r x_(start + r); needs kernel
 *
 * y [B,H,M,d], x [B,H,n,d]. With a kernel y.len must be attn_pool_len of x.len; of adaptive segments
 * y.len is what the caller wants, and rows from M on are 0.
 * Aliasing: y shares no memory with anything.
 * Memory: attn_pool_workspace bytes: O(d + kernel) a worker, DYNAMIC w and 64 rows of weights beside.
 * NaN: MEAN and DYNAMIC as IEEE arithmetic has it, MAX: a NaN among the rows of a column wins; -0 counts as 0.
 * Determinism: sums go on in f32 over 128 rows, then in double, in the order of the rows.
 * Cost: each row is read ceil(kernel / stride) times; DYNAMIC 2 d kernel flops a block beside.
 * Source: segments as in Xiong et al. 2021, arXiv 2102.03902; blocks as in Zhang et al. 2021, arXiv
 *   2105.04371, with dynamic kernels after Wu et al. 2019, arXiv 1901.10430. */
ATTN_DEF attn_status attn_pool(attn_tensor y, attn_tensor x, const attn_pool_params *params,
                               attn_ctx *ctx);
ATTN_DEF size_t attn_pool_workspace(attn_tensor y, attn_tensor x, const attn_pool_params *params,
                                    const attn_ctx *ctx);

/* ---- convolution ---------------------------------------------------------------------------------*/

/* Where the first tap of output row m lies, of n rows; M outputs, reach = (kernel - 1) dilation + 1.
 * Rows outside 0 .. n - 1 are 0. */
typedef enum attn_pad {
  ATTN_PAD_DEFAULT = 0, /* DROP: PyTorch's padding = 0; another where a call says so */
  ATTN_PAD_LEFT,  /* n - reach - (M - 1 - m) stride, M = ceil(n / stride): causal with stride 1 */
  ATTN_PAD_RIGHT, /* m stride, M = ceil(n / stride) */
  ATTN_PAD_DROP,  /* m stride, M = n < reach ? 0 : 1 + floor((n - reach) / stride) */
  ATTN_PAD_SAME,  /* m stride - floor((kernel - 1) / 2) dilation, M = ceil(n / stride) */
  ATTN_PAD_COUNT
} attn_pad;

typedef struct attn_convolve_params {
  attn_pad pad;
  int64_t stride;       /* 0 = 1 */
  int64_t dilation;     /* 0 = 1 */
  attn_tensor bias;     /* [1, 1 or H, 1, d_out]; absent = 0. Not of attn_convolve_depthwise */
  const int32_t *x_len; /* [B] */
  int accumulate;       /* y += ...; attn_convolve_depthwise only */
} attn_convolve_params;

/* M for n rows and a kernel; -1 for parameters that are no good. {0} and null are PyTorch's conv1d: stride
 * 1, no padding. */
ATTN_DEF int64_t attn_convolve_len(int64_t n, int64_t kernel, const attn_convolve_params *params);

/* Convolution of rows (a correlation: the kernel is not turned round):
 *
 *   y_m = bias + sum_r x[start_m + r dilation] W[r],  r = 0 .. kernel - 1
 *
 * y [B,H,M,d_out], x [B,H,n,d_in], w [1, 1 or H, kernel d_in, d_out] with W[r] in rows r d_in ..: kernel
 * = w.len / x.dim. y.len = attn_convolve_len(x.len, ..). With stride = kernel this cuts the sequence into
 * blocks of kernel rows, each times one matrix.
 * Aliasing: y shares no memory with anything. Memory: attn_convolve_workspace bytes: w as f32 in panels,
 * O(96 (d_in + 256)) a worker; rows of x are read in place, padding is never made.
 * NaN: as IEEE arithmetic has it, in exactly the rows that read it.
 * Determinism: each element is one chain of fused multiply-adds in the order of (r, c).
 * Cost: 2 B H M kernel d_in d_out flops.
 * Source: Liu et al. 2018, arXiv 1801.10198. */
ATTN_DEF attn_status attn_convolve(attn_tensor y, attn_tensor x, attn_tensor w,
                                   const attn_convolve_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_convolve_workspace(attn_tensor y, attn_tensor x, attn_tensor w,
                                        const attn_convolve_params *params, const attn_ctx *ctx);

/* Convolution of each column by itself (a correlation):
 *
 *   y_m[c] = (accumulate ? y_m[c] : 0) + sum_r w[r][c] x[start_m + r dilation][c]
 *
 * y [B,H,M,d], x [B,H,n,d]; w [1, 1 or H, kernel, d], or [.., kernel, 1]: one number for all columns. pad
 * SAME with an odd kernel is the centred form, LEFT the causal one.
 * Aliasing: y shares no memory with anything. Memory: attn_convolve_depthwise_workspace bytes, O(kernel d)
 * a worker, rows that are not f32 or no whole vectors beside.
 * NaN: as IEEE arithmetic has it, in exactly the rows that read it. accumulate leaves rows beyond a
 * batch entry's length alone; without it they are 0.
 * Determinism: one chain of fused multiply-adds in the order of r, to which y is added last; with weights
 * a column the products are rounded before they are added. Cost: 2 B H M kernel d flops.
 * Source: Xiong et al. 2021, arXiv 2102.03902. */
ATTN_DEF attn_status attn_convolve_depthwise(attn_tensor y, attn_tensor x, attn_tensor w,
                                             const attn_convolve_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_convolve_depthwise_workspace(attn_tensor y, attn_tensor x, attn_tensor w,
                                                  const attn_convolve_params *params,
                                                  const attn_ctx *ctx);

/* ---- selection and clustering --------------------------------------------------------------------*/

typedef struct attn_top_k_params {
  int smallest;         /* 1: the k smallest, the smallest first */
  const int32_t *x_len; /* [B], 0 .. x.dim: the columns of x that exist */
} attn_top_k_params;

/* The k largest elements of each row of x [B,H,T,n], the largest first; equal ones in the order of their
 * columns, NaN last. values [B,H,T,k] (data null: not wanted); index [B][H][T][k], null: not wanted; one
 * of them is needed. Where a row has fewer than k columns, index is -1 and the value -infinity (+infinity
 * for smallest). 1 <= k <= n < 2^31.
 * Aliasing: outputs share no memory with anything. Memory: attn_top_k_workspace bytes, O(k) a worker, and
 * a piece of a row that is not f32.
 * A -0 is taken and returned as 0.
 * Determinism: a set and an order, the same on all tiers. Cost: one pass over x; O(k log k) a row more. */
ATTN_DEF attn_status attn_top_k(attn_tensor values, int32_t *index, attn_tensor x, int64_t k,
                                const attn_top_k_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_top_k_workspace(attn_tensor values, int32_t *index, attn_tensor x, int64_t k,
                                     const attn_top_k_params *params, const attn_ctx *ctx);

typedef struct attn_kmeans_params {
  int dot;              /* 1: the largest dot product; 0: the smallest squared distance */
  int keep;             /* 1: centroids stay as they are: assignment and counts only */
  const int32_t *x_len; /* [B]; assignment of rows beyond is -1 */
} attn_kmeans_params;

/* One step of Lloyd's algorithm, for each (b, h) by itself: rows go to their nearest centroid, the lowest
 * of equals; then centroids become the mean of their rows. A centroid without rows stays.
 * next [B,H,C,d] (data null with keep; may be centroids), assignment [B][H][n], counts [B][H][C] (null:
 * not wanted), centroids [B,H,C,d] f32, x [B,H,n,d]. C >= 1; C, n < 2^31.
 * Memory: attn_kmeans_step_workspace bytes: O(64 (d + 48)) a worker, and C d' doubles, d' <= 32.
 * NaN: a row with NaN has an unspecified, legal centroid, whose mean then has NaN.
 * Determinism: products and distances are f32, sums of rows double in the order of the rows.
 * Cost: 2 B H n C d flops. Source: Lloyd 1982, doi 10.1109/TIT.1982.1056489. */
ATTN_DEF attn_status attn_kmeans_step(attn_tensor next, int32_t *assignment, int32_t *counts,
                                      attn_tensor centroids, attn_tensor x,
                                      const attn_kmeans_params *params, attn_ctx *ctx);
ATTN_DEF size_t attn_kmeans_step_workspace(attn_tensor next, int32_t *assignment, int32_t *counts,
                                           attn_tensor centroids, attn_tensor x,
                                           const attn_kmeans_params *params, const attn_ctx *ctx);

/* ---- small inverses ------------------------------------------------------------------------------*/

/* The iterative pseudo-inverse of square matrices, each by itself:
 *
 *   Z = A^T / (|A|_1 |A|_inf)      largest column sum and largest row sum of |A|
 *   iterations times: Y = A Z,  Z = Z (13 I - Y (15 I - Y (7 I - Y))) / 4
 *
 * z, a [B,H,m,m]; z may be a itself, else it shares no memory with anything. iterations >= 0; the paper's is 6.
 * Memory: attn_pinv_workspace bytes, 20 m m' a worker, m' <= m + 31. A = 0 gives 0; NaN and
 * infinity in a matrix spoil its result alone. Determinism: products are chains of fused multiply-adds.
 * Cost: 8 iterations m^3 flops a matrix.
 * Source: Razavi et al. 2014, doi 10.1155/2014/563787; Xiong et al. 2021, arXiv 2102.03902. */
ATTN_DEF attn_status attn_pinv(attn_tensor z, attn_tensor a, int64_t iterations, attn_ctx *ctx);
ATTN_DEF size_t attn_pinv_workspace(attn_tensor z, attn_tensor a, int64_t iterations,
                                    const attn_ctx *ctx);

/* x = (A + lambda I)^-1 b by elimination with partial pivoting in double. x, b [B,H,m,n], a [B,H,m,m]; x
 * may be b itself, else it shares no memory with anything. lambda is finite.
 * Errors: ATTN_E_NUMERIC when a pivot is below 1e-12 times the largest |entry| of A + lambda I, or A is not
 * finite; x is then untouched. Memory: attn_solve_workspace bytes: B H m (m + 1) doubles, and 8 m doubles a
 * worker. NaN in b: in its column of x. Cost: 2/3 m^3 + 2 m^2 n flops a matrix, in double. */
ATTN_DEF attn_status attn_solve(attn_tensor x, attn_tensor a, attn_tensor b, double lambda,
                                attn_ctx *ctx);
ATTN_DEF size_t attn_solve_workspace(attn_tensor x, attn_tensor a, attn_tensor b, double lambda,
                                     const attn_ctx *ctx);
#endif
