/* api/types.h owns the words every call shares: status codes, storage types, tensor and mask
 * views, the context and its report. No mechanism is declared here. */

#include <stddef.h>
#include <stdint.h>

/* The version, as MAJOR * 10000 + MINOR * 100 + PATCH. */
#define ATTN_VERSION 200

/* How every function is declared. ATTN_STATIC makes the implementation private to its file. */
#ifndef ATTN_DEF
#ifdef ATTN_STATIC
#define ATTN_DEF static
#else
#define ATTN_DEF extern
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* What a call returns. Anything but ATTN_OK means that no output byte was written;
 * ctx->reason then holds a sentence that names the argument and the rule. */
typedef enum attn_status {
  ATTN_OK = 0,
  ATTN_E_NULL,    /* a required pointer is null */
  ATTN_E_DTYPE,   /* a storage type is unknown, or not one this argument may have */
  ATTN_E_SHAPE,   /* an extent is negative, zero where it must not be, or does not match */
  ATTN_E_HEADS,   /* a head count does not divide the number of query heads */
  ATTN_E_STRIDE,  /* rows of an output share memory with one another */
  ATTN_E_RANGE,   /* a length, offset or window lies outside its range */
  ATTN_E_VALUE,   /* a parameter or a mask entry is NaN or infinite, or has a wrong sign */
  ATTN_E_MASK,    /* a mask does not broadcast to [batch, heads, q_len, k_len], or has a bad kind */
  ATTN_E_OVERLAP, /* an output shares memory with an input or with another output */
  ATTN_E_OVERFLOW,  /* sizes whose product does not fit the address space */
  ATTN_E_WORKSPACE, /* the workspace is smaller than attn_<name>_workspace asks for */
  ATTN_E_MEMORY,    /* ATTN_MALLOC returned null */
  ATTN_E_ISA,       /* the tier asked for cannot run here: attn_isa_why says why */
  ATTN_E_ENV,       /* the environment variable ATTN_ISA names no tier of this machine's family */
  ATTN_E_CTX,       /* a field of attn_ctx is inconsistent */
  ATTN_E_ALIGN,     /* a pointer is not aligned to the size of its elements */
  ATTN_E_INDEX,     /* an index list has an entry out of range, out of order or doubled */
  ATTN_E_PATTERN,   /* a pattern has an unknown kind, is too deep (or cyclic) or too large */
  ATTN_E_SCHEDULE,  /* the bytes are no schedule, or one for other lengths */
  ATTN_E_PAGE,      /* a page table names a page that is not in the cache, or one nobody holds */
  ATTN_E_FULL,      /* a cache has no free page, or a sequence no room, for what is appended */
  ATTN_E_ROLLBACK,  /* a sequence cannot go back to that length */
  ATTN_E_SCALE,     /* a scale is zero, negative or not finite, or a zero point is not finite */
  ATTN_E_NUMERIC,   /* a matrix is singular, or nearly, and cannot be inverted */
  ATTN_STATUS_COUNT
} attn_status;

/* A static English sentence for a status; never null, also for values out of range. */
ATTN_DEF const char *attn_status_string(attn_status status);

/* How numbers are stored. Arithmetic is f32 whatever the storage; conversion to 16 bits rounds
 * to nearest even and keeps infinities and NaN. */
typedef enum attn_dtype {
  ATTN_F32 = 0,  /* float */
  ATTN_F16 = 1,  /* IEEE binary16, as uint16_t */
  ATTN_BF16 = 2, /* upper half of a float, as uint16_t */
  /* Storage of keys and values (attn_quantize, attn_cache), I8 and I4 of w of attn_gemm and of weights that have scales
   * in their params too: any other argument of these types is rejected. I8 and I4 need scales. */
  ATTN_I8 = 3, /* two's complement bytes */
  ATTN_I4 = 4, /* -8..7, two to a byte, the even element in the low half; a row starts on a byte, so
                  * strides are even */
  ATTN_E4M3 = 5, /* OCP 8-bit float: 4 bits of exponent, 3 of mantissa, largest 448, one NaN */
  ATTN_DTYPE_COUNT
} attn_dtype;

/* Asks for a real zero where 0 means "default" (a scale of 0). A whole number whose 0 is legal and not its
 * default has a field has_<name> beside it: 1 says that the number holds, 0 included. */
#define ATTN_ZERO (-0.0f)

/* What attn_<name>_workspace returns when the call would be rejected: call it for the status and the reason. A
 * block of so many bytes cannot be had, so a program that asks for one fails there. 0 means that nothing is
 * needed. */
#define ATTN_WORKSPACE_REJECTED ((size_t)-1)

/* A view of a [batch, heads, len, dim] array. Strides are in elements and may be anything (0
 * broadcasts an input, negative walks backwards); dim is contiguous; data is aligned to its
 * elements, no more.
 * A null data pointer means "absent" for optional tensors. */
typedef struct attn_tensor {
  void *data;
  attn_dtype dtype;
  int64_t batch, heads, len, dim;
  int64_t stride_batch, stride_head, stride_len;
} attn_tensor;

/* A dense view of data laid out [batch][heads][len][dim]. Inputs may be const: only tensors
 * named as outputs are written. */
ATTN_DEF attn_tensor attn_bhtd(const void *data, attn_dtype dtype, int64_t batch, int64_t heads,
                               int64_t len, int64_t dim);

/* A dense view of data laid out [batch][len][heads][dim] (projections before the head split). */
ATTN_DEF attn_tensor attn_bthd(const void *data, attn_dtype dtype, int64_t batch, int64_t len,
                               int64_t heads, int64_t dim);

/* Scales of quantised rows: the number stored as n stands for (n - zero) * scale. A view of
 * [batch, heads, len, groups] f32 numbers for a tensor of that batch, heads and len; groups =
 * ceil(dim / group), contiguous; strides count numbers and may be anything, as for a tensor. */
typedef struct attn_scales {
  float *scale;  /* positive and finite; null = 1, for ATTN_E4M3 only */
  float *zero;   /* finite; null = 0: symmetric; always null for ATTN_E4M3 */
  int64_t group; /* columns that share a scale: 0 = the whole row, else a multiple of 32 */
  int64_t stride_batch, stride_head, stride_len;
} attn_scales;

/* Dense scales for x, laid out [batch][heads][len][groups]; zero may be null. */
ATTN_DEF attn_scales attn_scales_dense(float *scale, float *zero, int64_t group,
                                       const attn_tensor *x);

/* What the entries of a mask are. */
typedef enum attn_mask_kind {
  ATTN_MASK_NONE = 0, /* no mask */
  ATTN_MASK_BOOL,     /* uint8_t, 0 = forbidden, anything else = allowed */
  ATTN_MASK_BITS,     /* one bit a key, bit (j & 7) of byte (j >> 3), 1 = allowed */
  ATTN_MASK_ADD       /* a number of type dtype, added to the scaled score; -inf forbids */
} attn_mask_kind;

/* A view of a [batch, heads, q_len, k_len] mask. Each extent is the call's extent or 1, which
 * broadcasts. Strides count entries, for ATTN_MASK_BITS bytes; entries along k are contiguous. */
typedef struct attn_mask {
  const void *data;
  attn_mask_kind kind;
  attn_dtype dtype; /* of ATTN_MASK_ADD */
  int64_t batch, heads, q_len, k_len;
  int64_t stride_batch, stride_head, stride_q;
} attn_mask;

/* Dense masks; pass 1 for every extent that broadcasts. A row of bits starts on a byte. */
ATTN_DEF attn_mask attn_mask_bool(const uint8_t *data, int64_t batch, int64_t heads, int64_t q_len,
                                  int64_t k_len);
ATTN_DEF attn_mask attn_mask_bits(const uint8_t *data, int64_t batch, int64_t heads, int64_t q_len,
                                  int64_t k_len);
ATTN_DEF attn_mask attn_mask_add(const void *data, attn_dtype dtype, int64_t batch, int64_t heads,
                                 int64_t q_len, int64_t k_len);

/* How far a query sees from its own position, in keys: 0 = no key on that side but its own, -1 =
 * unlimited; FlashAttention's window_size = (left, right). {0} is no window; else made by
 * attn_window_of. */
typedef struct attn_window {
  int on;              /* 1: left and right hold; 0: they are 0 */
  int64_t left, right; /* furthest key behind and ahead */
} attn_window;

ATTN_DEF attn_window attn_window_of(int64_t left, int64_t right);

/* The tiers. Later ones are appended; see api/isa.h. */
typedef enum attn_isa {
  ATTN_ISA_AUTO = 0, /* the fastest that runs here */
  ATTN_ISA_SCALAR,   /* portable C */
  ATTN_ISA_AVX2,     /* x86: AVX2, FMA, F16C */
  ATTN_ISA_AVX512,   /* x86: AVX-512 F, BW, DQ, VL, CD */
  ATTN_ISA_NEON,     /* ARM: aarch64, or 32-bit compiled for NEON with VFPv4 */
  ATTN_ISA_COUNT
} attn_isa;

/* What some processors have beside a tier: products of narrow numbers, for params.compute. Later ones are
 * appended; see api/isa.h. */
typedef enum attn_feature {
  ATTN_FEATURE_NONE = 0,
  ATTN_FEATURE_AVX512_BF16,  /* beside ATTN_ISA_AVX512: products of pairs of bf16 */
  ATTN_FEATURE_AVX512_VNNI,  /* beside ATTN_ISA_AVX512: products of four codes of 8 bits */
  ATTN_FEATURE_NEON_BF16,    /* beside ATTN_ISA_NEON, 64-bit: products of pairs of bf16 */
  ATTN_FEATURE_NEON_DOTPROD, /* the same: products of four codes of 8 bits */
  ATTN_FEATURE_AVX_VNNI,     /* beside ATTN_ISA_AVX2: products of four codes of 8 bits */
  ATTN_FEATURE_NEON_FP16FML, /* beside ATTN_ISA_NEON, 64-bit: products of f16 summed in f32 */
  ATTN_FEATURE_COUNT
} attn_feature;

/* One of the pieces of work of a call: task(arg, index). */
typedef void (*attn_task_fn)(void *arg, int64_t index);

/* Runs task(arg, index) once for every index in 0..count-1, in any order, on any threads, one
 * after another if it must, and returns when all are done. user is ctx->parallel_user. count
 * is never above ctx->workers. */
typedef void (*attn_parallel_fn)(void *user, int64_t count, attn_task_fn task, void *arg);

/* What numbers the products of a call are made of, whatever the storage: api/calls/sdpa.h. */
typedef enum attn_compute {
  ATTN_COMPUTE_F32 = 0, /* the same bits on all vector tiers */
  ATTN_COMPUTE_BF16,    /* bf16 by bf16, summed in f32 */
  ATTN_COMPUTE_F16,     /* f16 by f16, summed in f32 */
  ATTN_COMPUTE_I8, /* scores, and products with w of codes, from codes of 8 bits, summed exactly */
  ATTN_COMPUTE_COUNT
} attn_compute;

/* What a call did, written on success. */
typedef struct attn_report {
  attn_isa isa;         /* the tier that ran */
  int workers;          /* pieces the work was cut into */
  const char *path;     /* the name of the algorithm */
  const char *why;      /* why it was chosen */
  int64_t pairs;        /* query-key scores computed, masked ones inside a tile included */
  attn_compute compute; /* what its products were made of */
  attn_feature feature; /* whose instructions made them; NONE: the tier's own, or emulated */
} attn_report;

/* How a call runs. NULL or {0} (in C++ also {}): fastest tier, serial, memory from ATTN_MALLOC. One attn_ctx
 * belongs to one call at a time; calls with different contexts may run at once. */
typedef struct attn_ctx {
  int validate;                  /* also read masks and reject NaN and +inf in them */
  attn_isa isa;                  /* a tier to force, or ATTN_ISA_AUTO */
  void *workspace;               /* memory to work in, any alignment; null = ATTN_MALLOC */
  size_t workspace_size;         /* its bytes */
  attn_parallel_fn parallel_for; /* null = serial */
  void *parallel_user;
  int workers;        /* the most pieces to cut the work into; 0 = 1 */
  const char *reason; /* out: why the call was rejected, null after a success */
  attn_report report; /* out */
} attn_ctx;

#ifdef _OPENMP
/* A ready parallel_for for programs compiled with OpenMP; user is ignored. Set ctx.workers to
 * omp_get_max_threads() or less. */
ATTN_DEF void attn_parallel_openmp(void *user, int64_t count, attn_task_fn task, void *arg);
#endif
