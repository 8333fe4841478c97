/* engine/workspace.h owns the memory of a call: one block, from the caller or from ATTN_MALLOC,
 * cut into cache-line aligned pieces. */

#define ATTN_ALIGN_ 64

/* bytes for n elements, rounded up to whole cache lines */
ATTN_OUTLINE_ int64_t attn_piece_(int64_t n, int64_t size) {
  int64_t bytes = attn_mul_(n, size);
  return bytes > INT64_MAX - ATTN_ALIGN_ ? INT64_MAX
                                         : (bytes + ATTN_ALIGN_ - 1) & ~(int64_t)(ATTN_ALIGN_ - 1);
}

/* Where a piece of n elements begins in a worker's memory, whose bytes so far are *at. */
ATTN_OUTLINE_ int64_t attn_cut_(int64_t *at, int64_t n, int64_t size) {
  const int64_t from = *at;
  *at = attn_add_(from, attn_piece_(n, size));
  return from;
}

/* what to ask of the caller for count workers of each bytes, alignment included; INT64_MAX when
 * that cannot be addressed */
ATTN_FUNC_ int64_t attn_workspace_bytes_(int64_t each, int64_t count) {
  int64_t bytes = attn_add_(attn_mul_(each, count), ATTN_ALIGN_ - 1);
  return bytes > (sizeof(void *) == 4 ? (int64_t)0x7fffffff : INT64_MAX / 4) ? INT64_MAX : bytes;
}

/* The caller's workspace as a span, empty when there is none. */
ATTN_FUNC_ int attn_check_workspace_(attn_error_ *e, const attn_ctx *ctx, attn_span_ *span) {
  span->lo = span->hi = 0;
  if (!ctx || !ctx->workspace) return 1;
  span->lo = (uintptr_t)ctx->workspace;
  if (ctx->workspace_size > UINTPTR_MAX - span->lo)
    return attn_reject_(e, ATTN_E_OVERFLOW, "ctx.workspace_size passes the address space");
  span->hi = span->lo + ctx->workspace_size;
  return 1;
}

/* The context of a workspace query: the same call before it has one. */
ATTN_FUNC_ attn_ctx attn_before_workspace_(const attn_ctx *ctx) {
  attn_ctx plain;
  attn_clear_(&plain, sizeof plain);
  if (ctx) plain = *ctx;
  plain.workspace = NULL, plain.workspace_size = 0;
  return plain;
}

/* What a workspace query answers when its call is judged so and wants so many bytes. */
ATTN_FUNC_ size_t attn_answer_(attn_status status, int64_t bytes) {
  return status == ATTN_OK && bytes >= 0 && bytes < INT64_MAX ? (size_t)bytes
                                                              : ATTN_WORKSPACE_REJECTED;
}

ATTN_FUNC_ int attn_workspace_fits_(attn_error_ *e, int64_t bytes) {
  return bytes < INT64_MAX
             ? 1
             : attn_reject_(e, ATTN_E_OVERFLOW, "the workspace would not fit the address space");
}

typedef struct attn_workspace_ {
  char *base;  /* aligned */
  void *owned; /* what ATTN_FREE gets */
} attn_workspace_;

ATTN_FUNC_ int attn_workspace_get_(attn_error_ *e, attn_workspace_ *w, const attn_ctx *ctx,
                                   int64_t bytes) {
  char *raw;
  w->owned = NULL;
  if (!attn_workspace_fits_(e, bytes)) return 0;
  if (ctx && ctx->workspace) {
    if ((uint64_t)ctx->workspace_size < (uint64_t)bytes)
      return attn_reject_(e, ATTN_E_WORKSPACE,
                          "ctx.workspace_size is less than the workspace query returns");
    raw = (char *)ctx->workspace;
  } else {
    w->owned = ATTN_MALLOC((size_t)bytes);
    if (!w->owned) return attn_reject_(e, ATTN_E_MEMORY, "ATTN_MALLOC returned null");
    raw = (char *)w->owned;
  }
  w->base = raw + (ATTN_ALIGN_ - (uintptr_t)raw % ATTN_ALIGN_) % ATTN_ALIGN_;
  return 1;
}

ATTN_FUNC_ void attn_workspace_drop_(attn_workspace_ *w) {
  if (w->owned) ATTN_FREE(w->owned);
}
