/* families/mixers/mixer.h owns MLP-Mixer: a network along the sequence, whose products read the rows of the
 * tokens as they lie, and one along the channels. */

typedef struct attn_mixer_job_ {
  attn_tensor o, x;
  attn_mixer_params p;
} attn_mixer_job_;

/* A network of `in` inputs and outputs, with both its layers. */
ATTN_COLD_ int attn_mixer_check_net_(attn_error_ *e, attn_arguments_ *l, attn_feed_forward *f,
                                     const attn_table_ *table, int channel, int64_t in) {
#define ATTN_NET_(at, n)                                                                          \
  {                                                                                               \
    {ATTN_WORDS_(at "w_1"), ATTN_WORDS_(at "b_1"), ATTN_WORDS_(at "w_2"), ATTN_WORDS_(at "b_2")}, \
        {ATTN_IN_OUT_(at "w_1", n, "."), at "b_1 must be [1, 1, 1, the width of w_1]",            \
         ATTN_IN_OUT_(at "w_2", "the width of w_1", n), at "b_2 must be [1, 1, 1, " n "]"},       \
        at "activation must be an attn_activation", ATTN_COMPUTE_WORDS_(at "compute"),            \
        at "w_3, .b_3, .form and scales must be absent"                                           \
  }
  static const struct {
    const char *words[4];
    const char *rule[4], *activation, *compute, *gated;
  } said[] = {ATTN_NET_("params.token.", "x.len"), ATTN_NET_("params.channel.", "x.dim")};
#undef ATTN_NET_
  const int at = channel != 0;
  attn_turn_(&f->w_1, f->w_transposed), attn_turn_(&f->w_2, f->w_transposed);
  const int64_t hidden = f->w_1.dim;
  return attn_check_argument_(e, l, &f->w_1, said[at].words[0], ATTN_MATRIX_, 1, 1, in, ATTN_ANY_,
                              said[at].rule[0]) &&
         attn_check_argument_(e, l, &f->b_1, said[at].words[1], ATTN_OPTIONAL_, 1, 1, 1, hidden,
                              said[at].rule[1]) &&
         attn_check_argument_(e, l, &f->w_2, said[at].words[2], ATTN_MATRIX_, 1, 1, hidden, in,
                              said[at].rule[2]) &&
         attn_check_argument_(e, l, &f->b_2, said[at].words[3], ATTN_OPTIONAL_, 1, 1, 1, in,
                              said[at].rule[3]) &&
         attn_check_activation_(e, &f->activation, ATTN_ACT_GELU, said[at].activation) &&
         attn_feed_compute_(e, f, table, 0, said[at].compute) &&
         (!(f->w_3.data || f->b_3.data || attn_formed_(&f->form) || f->w_1_scales.scale ||
            f->w_2_scales.scale || f->w_3_scales.scale) ||
          attn_reject_(e, ATTN_E_RANGE, said[at].gated));
}

ATTN_COLD_ int attn_mixer_check_(attn_error_ *e, attn_mixer_job_ *j, const attn_ctx *ctx,
                                 const attn_table_ **table, int *workers) {
  const int64_t any = ATTN_ANY_;
  attn_arguments_ l;
  attn_arrays_ more = {0, {{0, 0, 0, 0}}};
  memset(&l, 0, sizeof l);
  return attn_check_ctx_(e, ctx, table, workers) &&
         attn_check_argument_(e, &l, &j->o, ATTN_WORDS_("o"), ATTN_OUT_, any, 1, any, any,
                              "o must have one head") &&
         attn_check_argument_(e, &l, &j->x, ATTN_WORDS_("x"), 0, j->o.batch, 1, j->o.len, j->o.dim,
                              "x must have the shape of o") &&
         attn_mixer_check_net_(e, &l, &j->p.token, *table, 0, j->o.len) &&
         attn_mixer_check_net_(e, &l, &j->p.channel, *table, 1, j->o.dim) &&
         attn_check_norm_(e, &j->p.norm_token, j->o.dim, &more) &&
         attn_check_norm_(e, &j->p.norm_channel, j->o.dim, &more) &&
         attn_mixed_apart_(e, ctx, &l, &more);
}

/* y = x + the network of the tokens of LN(x). panels and hidden: room for [T] and [ds] rows. */
ATTN_COLD_ int attn_mixer_tokens_(attn_stage_ *s, const attn_mixer_params *p, attn_tensor y,
                                  attn_tensor x, float *panels, float *hidden) {
  const attn_feed_forward *f = &p->token;
  attn_spatial_ up, down;
  memset(&up, 0, sizeof up);
  up.w = f->w_1, up.row_bias = f->b_1, up.turned = !attn_turn_back_(&up.w);
  up.heads = 1, up.rows = f->w_1.dim, up.k = x.len, up.n = x.dim;
  up.panels = hidden, up.act = f->activation;
  memset(&down, 0, sizeof down);
  down.w = f->w_2, down.row_bias = f->b_2, down.turned = !attn_turn_back_(&down.w);
  down.heads = 1, down.rows = x.len, down.k = f->w_1.dim, down.n = x.dim;
  down.m[0] = attn_spatial_matrix_(attn_bhtd(hidden, ATTN_F32, x.batch, 1, down.k, x.dim));
  down.m[0].packed = hidden;
  down.add = x, down.y = y;
  return attn_stage_norm_panels_(s, &up.m[0], x, 1, &p->norm_token, panels) &&
         attn_stage_spatial_(s, &up, x.batch, 0, 0) && attn_stage_spatial_(s, &down, x.batch, 0, 0);
}

ATTN_COLD_ int attn_mixer_steps_(attn_stage_ *s, void *job) {
  const attn_mixer_job_ *j = (const attn_mixer_job_ *)job;
  const attn_mixer_params *p = &j->p;
  const attn_feed_forward *f = &p->channel;
  const attn_tensor none = attn_view_(NULL, ATTN_F32, 0, 0, 0, 0);
  const int64_t batch = j->x.batch, t = j->x.len, dm = j->x.dim;
  const int64_t most = attn_mixed_entries_(batch, t);
  const int64_t rows = t < ATTN_MIXED_ROWS_ ? t : (int64_t)ATTN_MIXED_ROWS_;
  attn_tensor n = attn_multihead_rows_(s, most, rows, dm), y = none;
  attn_tensor middle = attn_multihead_rows_(s, most, rows, f->w_1.dim);
  if (j->o.dtype != ATTN_F32) y = attn_multihead_rows_(s, most, t, dm);
  float *panels = attn_stage_panels_(s, most, 1, t, dm);
  float *hidden = attn_stage_panels_(s, most, 1, p->token.w_1.dim, dm);
  for (int64_t b = 0, some; b < batch; b += some) {
    some = batch - b < most ? batch - b : most;
    const attn_tensor x = attn_mixed_some_(j->x, b, some), o = attn_mixed_some_(j->o, b, some);
    n.batch = y.batch = middle.batch = some;
    if (j->o.dtype == ATTN_F32) y = o;
    if (!attn_mixer_tokens_(s, p, y, x, panels, hidden)) return 0;
    for (int64_t i = 0; i < t; i += rows) {
      const int64_t len = t - i < rows ? t - i : rows;
      const attn_tensor part = attn_stage_rows_(y, i, len);
      n.len = middle.len = len;
      if (!attn_stage_norm_(s, n, part, none, &p->norm_channel) ||
          !attn_stage_dense_(s, middle, n, f->w_1, f->b_1, f->activation) ||
          !attn_stage_mixed_(s, attn_stage_rows_(o, i, len), part, middle, f->w_2, f->b_2))
        return 0;
    }
  }
  return 1;
}

ATTN_COLD_ attn_status attn_mixer_call_(attn_tensor o, attn_tensor x,
                                        const attn_mixer_params *params, attn_ctx *ctx,
                                        size_t *bytes) {
  attn_error_ e = {ATTN_OK, NULL};
  const attn_table_ *table = NULL;
  attn_mixer_job_ j;
  int workers = 1;
  memset(&j, 0, sizeof j);
  j.o = o, j.x = x;
  if (params) j.p = *params;
  if (!params)
    attn_reject_(&e, ATTN_E_NULL, "params must not be null: it has the weights");
  else
    (void)attn_mixer_check_(&e, &j, ctx, &table, &workers);
  return attn_step_call_or_(&e, table, workers, ctx, attn_mixer_steps_, &j,
                            "products along tokens and channels",
                            o.batch == 0 || o.len == 0 ? "no rows" : NULL, bytes);
}

ATTN_CALL_(attn_mixer, (o, x, params), attn_tensor o, attn_tensor x,
           const attn_mixer_params *params)
