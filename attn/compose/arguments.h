/* compose/arguments.h owns the list of a call's tensors while they are checked one after another. */

typedef struct attn_arguments_ {
  attn_operand_ op[16];
  int n;
  int64_t batch, heads; /* what "1 or all" and "divides" are said of */
} attn_arguments_;

/* Checks the next argument and notes its span; batch may be ATTN_ONE_OR_ALL_ too. */
ATTN_COLD_ int attn_check_argument_(attn_error_ *e, attn_arguments_ *l, attn_tensor *t,
                                    const char *w, int role, int64_t batch, int64_t heads,
                                    int64_t len, int64_t dim, const char *rule) {
  attn_operand_ *p = &l->op[l->n++];
  p->t = t, p->w = w, p->role = role, p->rule = rule;
  p->batch = batch, p->heads = heads, p->len = len, p->dim = dim;
  if (batch == ATTN_ONE_OR_ALL_) p->batch = t->batch == 1 ? 1 : l->batch;
  return attn_check_operand_(e, p, l->heads);
}
