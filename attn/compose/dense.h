/* compose/dense.h owns rows through weights: what is said about a weight, products with bias, the
 * feed-forward whose rows go through both products together. */

/* What is said about a weight or bias: the sentences that a view of one of the float types can need. */
typedef struct attn_said_ {
  const char *words;
  const char *shape;
} attn_said_;
#define ATTN_SAID_(name, shape) \
  { ATTN_WORDS_IN_(name), name " must be " shape }
#define ATTN_SAID_IN_OUT_(name, in, out) \
  { ATTN_WORDS_IN_(name), ATTN_IN_OUT_(name, in, out) }

/* A weight [1,1,in,out] that attn_turn_ has seen. */
ATTN_COLD_ attn_operand_ attn_weight_(attn_tensor *t, const attn_said_ *rule, int role, int64_t in,
                                      int64_t out) {
  const attn_operand_ p =
      ATTN_OPERAND_AS_(t, rule->words, role | (int)ATTN_MATRIX_, 1, 1, in, out, rule->shape);
  return p;
}

/* A bias [1,1,1,out], or a weight of one output. */
ATTN_COLD_ attn_operand_ attn_bias_(attn_tensor *t, const attn_said_ *rule, int role, int64_t out) {
  const attn_operand_ p = ATTN_OPERAND_AS_(t, rule->words, role, 1, 1, 1, out, rule->shape);
  return p;
}

/* Where a block or feed-forward stands among the parameters of a call. */
typedef enum attn_place_ {
  ATTN_PLACE_,         /* by itself */
  ATTN_PLACE_INDUCE_,  /* MAB_0 of ISAB */
  ATTN_PLACE_RESTORE_, /* MAB_1 */
  ATTN_PLACE_BLOCK_,   /* of PMA */
  ATTN_PLACE_BEFORE_,  /* rFF_0: a feed-forward */
  ATTN_PLACE_EXPERTS_, /* of attn_expert_rows */
  ATTN_PLACE_SHARED_,
  ATTN_PLACES_
} attn_place_;

/* Lengths of an array of b entries, within 0..most. */
ATTN_COLD_ int attn_check_cut_(attn_error_ *e, const int32_t *len, int64_t b, int64_t most,
                               const char *align, const char *range, attn_arrays_ *more) {
  return attn_check_array_(e, len, b, 4, align, &more->span[more->n++]) &&
         attn_check_lens_(e, len, b, most, range);
}

/* Three weights with their biases, and the arrays of scales. */
enum { ATTN_FEED_TENSORS_ = 6, ATTN_FEED_OPERANDS_ = 12 };

ATTN_COLD_ void attn_feed_turn_(attn_feed_forward *ff) {
  attn_turn_(&ff->w_1, ff->w_transposed), attn_turn_(&ff->w_2, ff->w_transposed);
  attn_turn_(&ff->w_3, ff->w_transposed);
}

/* What its products are made of; takes: the call has others than f32. */
ATTN_COLD_ int attn_feed_compute_(attn_error_ *e, const attn_feed_forward *ff,
                                  const attn_table_ *table, int takes, const char *words) {
  const attn_low_table_ *low;
  attn_feature feature;
  return attn_compute_take_(e, table, ff->compute, ff->compute_prefer, takes, words, &low,
                            &feature);
}

/* What 0 stands for. */
ATTN_COLD_ attn_activation attn_feed_default_(const attn_feed_forward *ff) {
  return ff->w_3.data ? ATTN_ACT_SILU : ATTN_ACT_RELU;
}

/* Feed-forward from din to dout columns, with so many heads. */
ATTN_COLD_ int attn_check_feed_(attn_error_ *e, attn_feed_forward *ff, const attn_table_ *table,
                                attn_place_ at, int64_t heads, int64_t din, int64_t dout,
                                attn_operand_ *op) {
#define ATTN_FEEDS_(at, heads)                                                        \
  {                                                                                   \
    {{ATTN_WORDS_(at "w_1"),                                                          \
      ATTN_HEADS_IN_OUT_(at "w_1", heads, "din", "dff (dout without w_2)")},          \
     ATTN_SAID_(at "b_1", "[1, " heads ", 1, dff]"),                                  \
     {ATTN_WORDS_(at "w_2"), ATTN_HEADS_IN_OUT_(at "w_2", heads, "dff", "dout")},     \
     ATTN_SAID_(at "b_2", "[1, " heads ", 1, dout]"),                                 \
     {ATTN_WORDS_(at "w_3"), ATTN_HEADS_IN_OUT_(at "w_3", heads, "din", "dff")},      \
     ATTN_SAID_(at "b_3", "[1, " heads ", 1, dff]")},                                 \
        {ATTN_SCALES_WORDS_(at "w_1_scales", at "w_1"),                               \
         ATTN_SCALES_WORDS_(at "w_2_scales", at "w_2"),                               \
         ATTN_SCALES_WORDS_(at "w_3_scales", at "w_3")},                              \
        {at "w_2 must not be null where " at "b_2 is there",                          \
         at "w_3 must not be null where " at "b_3 is there"},                         \
        at "activation must be an attn_activation", ATTN_COMPUTE_WORDS_(at "compute") \
  }
#define ATTN_FEED_(at) ATTN_FEEDS_(at, "1")
  static const struct {
    attn_said_ rule[ATTN_FEED_TENSORS_];
    attn_scales_words_ scales[3];
    const char *alone[2], *activation, *compute;
  } say[ATTN_PLACES_] = {ATTN_FEED_("ff."),
                         ATTN_FEED_("params.induce.ff."),
                         ATTN_FEED_("params.restore.ff."),
                         ATTN_FEED_("params.block.ff."),
                         ATTN_FEED_("params.before."),
                         ATTN_FEEDS_("params.experts.", "E"),
                         ATTN_FEED_("params.shared.")};
#undef ATTN_FEED_
#undef ATTN_FEEDS_
  attn_feed_turn_(ff);
  const int64_t dff = ff->w_2.data ? ff->w_1.dim : dout;
  op[0] = attn_weight_(&ff->w_1, &say[at].rule[0], 0, din, dff);
  op[1] = attn_bias_(&ff->b_1, &say[at].rule[1], ATTN_OPTIONAL_, dff);
  op[2] = attn_weight_(&ff->w_2, &say[at].rule[2], ATTN_OPTIONAL_, dff, dout);
  op[3] = attn_bias_(&ff->b_2, &say[at].rule[3], ATTN_OPTIONAL_, dout);
  op[4] = attn_weight_(&ff->w_3, &say[at].rule[4], ATTN_OPTIONAL_, din, dff);
  op[5] = attn_bias_(&ff->b_3, &say[at].rule[5], ATTN_OPTIONAL_, dff);
  for (int i = 0; i < ATTN_FEED_TENSORS_; i++) {
    op[i].heads = heads;
    if (i % 2 == 0) op[i].role |= (int)ATTN_CODES_;
    if (!attn_check_operand_(e, &op[i], heads)) return 0;
  }
  memset(op + ATTN_FEED_TENSORS_, 0, (ATTN_FEED_OPERANDS_ - ATTN_FEED_TENSORS_) * sizeof *op);
  attn_scales *const scales[] = {&ff->w_1_scales, &ff->w_2_scales, &ff->w_3_scales};
  for (int i = 0; i < 3; i++)
    if (!attn_check_weight_scales_(e, scales[i], op[2 * i].t, &say[at].scales[i],
                                   op + ATTN_FEED_TENSORS_ + 2 * i))
      return 0;
  if (ff->b_2.data && !ff->w_2.data) return attn_reject_(e, ATTN_E_NULL, say[at].alone[0]);
  if (ff->b_3.data && !ff->w_3.data) return attn_reject_(e, ATTN_E_NULL, say[at].alone[1]);
  return attn_check_activation_(e, &ff->activation, attn_feed_default_(ff), say[at].activation) &&
         attn_check_form_(e, &ff->form, ff->w_3.data != NULL) &&
         attn_feed_compute_(e, ff, table, 1, say[at].compute);
}

/* Rows cut into heads: head h has columns h dim .. */
ATTN_COLD_ attn_tensor attn_split_(attn_tensor t, int64_t heads) {
  t.dim /= heads, t.heads = heads, t.stride_head = t.dim;
  return t;
}

/* y = act(x w + bias); bias may be absent. */
ATTN_COLD_ int attn_stage_dense_(attn_stage_ *s, attn_tensor y, attn_tensor x, attn_tensor w,
                                 attn_tensor bias, attn_activation act) {
  attn_gemm_params p;
  memset(&p, 0, sizeof p);
  p.bias = bias, p.activation = act;
  return attn_stage_gemm_(s, y, x, w, &p);
}

/* Rows that go through all products of a layer together, so that what lies between stays in the second
 * cache. Fixed, since it decides which rows share a call. */
enum { ATTN_LAYER_ROWS_ = 1024 };

ATTN_COLD_ int64_t attn_layer_rows_(int64_t n) {
  return n < ATTN_LAYER_ROWS_ ? n : (int64_t)ATTN_LAYER_ROWS_;
}

/* What lies between the products of a feed-forward over so many rows: the hidden ones, beside them those of w_3. */
ATTN_COLD_ attn_tensor attn_stage_middle_(attn_stage_ *s, const attn_feed_forward *ff,
                                          int64_t batch, int64_t rows) {
  if (!ff->w_2.data && !ff->w_3.data) return attn_view_(NULL, ATTN_F32, 0, 0, 0, 0);
  return attn_stage_tensor_(s, batch, 1, rows, attn_mul_(ff->w_1.dim, ff->w_3.data ? 2 : 1));
}

/* y = ff(x) */
ATTN_COLD_ int attn_stage_feed_(attn_stage_ *s, attn_tensor y, attn_tensor x, attn_tensor middle,
                                const attn_feed_forward *ff) {
  attn_gemm_params p;
  attn_tensor up, hidden = y;
  memset(&p, 0, sizeof p);
  p.compute = ff->compute, p.compute_prefer = ff->compute_prefer;
  middle.len = x.len, up = middle;
  if (middle.data) hidden = middle, hidden.dim = ff->w_1.dim;
  p.bias = ff->b_1, p.activation = ff->activation, p.w_scales = ff->w_1_scales;
  if (ff->w_3.data) /* follows behind the other product */
    p.activation = attn_formed_(&ff->form) ? ATTN_ACT_NONE : ff->activation;
  else
    p.form = ff->form;
  if (!attn_stage_gemm_(s, hidden, x, ff->w_1, &p)) return 0;
  const attn_activation late =
      ff->w_3.data && attn_formed_(&ff->form) ? ff->activation : ATTN_ACT_NONE;
  memset(&p.form, 0, sizeof p.form);
  p.activation = ATTN_ACT_NONE;
  if (ff->w_3.data) {
    up.data = (float *)middle.data + hidden.dim, up.dim = hidden.dim;
    p.bias = ff->b_3, p.w_scales = ff->w_3_scales;
    if (!attn_stage_gemm_(s, up, x, ff->w_3, &p) ||
        !attn_stage_activate_(s, ff->w_2.data ? hidden : y, hidden, up, late, &ff->form))
      return 0;
  }
  p.bias = ff->b_2, p.w_scales = ff->w_2_scales;
  return !ff->w_2.data || attn_stage_gemm_(s, y, hidden, ff->w_2, &p);
}
