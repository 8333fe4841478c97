/* tests/families/blocks/test_experts.c owns the feed-forward of mixtures of experts (K8). */

#define _DEFAULT_SOURCE
#include <sys/mman.h>
#include <unistd.h>

#include "computes.h"
#include "experts.h"

static const attn_activation acts[] = {ATTN_ACT_DEFAULT, ATTN_ACT_GELU, ATTN_ACT_RELU,
                                       ATTN_ACT_GELU_TANH, ATTN_ACT_SILU};

/* Options of the choice, by number. */
static void options(experts *s, int n, test_rng *rng) {
  attn_expert_rows_params *p = &s->p;
  const int64_t count = s->p.logits.dim;
  p->score = n % 2 ? ATTN_EXPERTS_SIGMOID : ATTN_EXPERTS_SOFTMAX;
  p->no_renormalize = n / 2 % 2;
  p->scale = n % 3 == 2 ? 2.5f : 0.0f;
  p->weigh_input = n % 5 == 4;
  if (n / 4 % 2) p->choice_bias = drawn((attn_dtype)(n % 3), TEST_BHTD, 1, 1, 1, count, 0.3, rng);
}

void K8_experts(void **state) {
  (void)state;
  test_rng rng = test_seed(8100);
  for (int n = 0; n < test_count(60, 20); n++, test_mem_release()) {
    experts_shape x = experts_plain(test_range(&rng, 1, n % 6 ? 12 : 90), 1, 1);
    x.batch = test_range(&rng, 1, 3), x.count = test_range(&rng, 1, n % 4 ? 9 : 40);
    x.k = test_range(&rng, 1, x.count < 5 ? x.count : 5);
    x.din = test_range(&rng, 1, n % 5 ? 30 : 140), x.dout = test_range(&rng, 1, 70);
    x.dff = n % 7 == 6 ? 0 : test_range(&rng, 1, n % 5 ? 40 : 290);
    x.x_type = (attn_dtype)(n % 3), x.w_type = (attn_dtype)(n / 3 % 3);
    x.y_type = (attn_dtype)(n / 2 % 3), x.layout = (test_layout)(n % 4);
    x.gated = n % 3 != 1, x.biases = n % 4 != 3, x.shared = n % 3;
    experts *s = experts_build(&x, &rng);
    options(s, n, &rng);
    s->p.experts.activation = acts[n % 5], s->p.shared.activation = acts[n / 2 % 5];
    if (n / 2 % 2) experts_turn(s);
    if (n % 5 == 3) s->p.expert = NULL, s->p.weight = s->p.logits = absent();
    if (n % 4 == 2 && x.gated) { /* gpt-oss's, with limits that are reached */
      const attn_act_form form = {1.702f, 0.6f, 1};
      s->p.experts.form = s->p.shared.form = form;
    }
    experts_check(s, 3e-5, "experts");
  }
}

/* Groups by either rule, with and without biases; the choice that is left may be all of a group. */
void K8_groups(void **state) {
  (void)state;
  test_rng rng = test_seed(8101);
  for (int n = 0; n < test_count(40, 16); n++, test_mem_release()) {
    const int64_t groups = test_range(&rng, 2, 8), size = test_range(&rng, n % 2 ? 2 : 1, 6);
    const int64_t group_k = test_range(&rng, 1, groups);
    experts_shape x = experts_plain(30, groups * size, 1);
    x.k = n % 5 ? test_range(&rng, 1, group_k * size) : group_k * size;
    experts *s = experts_build(&x, &rng);
    options(s, n / 2, &rng);
    s->p.groups = groups, s->p.group_k = n % 7 == 6 ? 0 : group_k;
    s->p.group_by = n % 2 ? ATTN_EXPERTS_GROUP_SUM : ATTN_EXPERTS_GROUP_MAX;
    experts_check(s, 3e-5, "groups");
  }
}

/* The routers of models by the fields that their configurations have. */
void K8_models(void **state) {
  (void)state;
  test_rng rng = test_seed(8102);
  for (int n = 0; n < 7; n++, test_mem_release()) {
    experts_shape x = experts_plain(20, n == 2 || n == 3 ? 32 : 8, n == 6 ? 1 : n == 2 ? 6 : 2);
    x.biases = n == 4, x.shared = n == 1 ? 2 : n == 2 || n == 3 || n == 6;
    experts *s = experts_build(&x, &rng);
    attn_expert_rows_params *p = &s->p;
    if (n == 1) p->no_renormalize = 1; /* Qwen2-MoE; 0: Mixtral, 4: gpt-oss, 5: Qwen3-MoE */
    if (n == 2) p->no_renormalize = 1, p->scale = 16, p->groups = 8, p->group_k = 3; /* V2 */
    if (n == 4) {
      const attn_act_form form = {1.702f, 7, 1};
      p->experts.form = form;
    }
    if (n == 3) { /* V3 */
      p->score = ATTN_EXPERTS_SIGMOID, p->group_by = ATTN_EXPERTS_GROUP_SUM, p->scale = 2.5f;
      p->choice_bias = drawn(ATTN_F32, TEST_BHTD, 1, 1, 1, 32, 0.2, &rng);
      p->groups = 8, p->group_k = 4;
    }
    if (n == 6)
      p->score = ATTN_EXPERTS_SIGMOID, p->no_renormalize = p->weigh_input = 1; /* Llama 4 */
    experts_check(s, 1e-4, "a model");
  }
}

/* Matrices of codes: many rows, few, one expert's; the bits of a row are its own there too. */
void K8_codes(void **state) {
  (void)state;
  test_rng rng = test_seed(8113);
  for (int n = 0; n < test_count(24, 12); n++, test_mem_release()) {
    static const int64_t groups[] = {0, 32, 64, 128};
    experts_shape x = experts_plain(n % 3 == 0 ? 40 : n % 3 == 1 ? 1 : 5, 4, 2);
    x.din = n % 2 ? 129 : 256, x.dff = n % 5 == 4 ? 0 : 200, x.dout = 70, x.gated = n % 4 != 3;
    x.y_type = (attn_dtype)(n % 2);
    experts *s = experts_build(&x, &rng);
    if (n / 2 % 2) experts_turn(s);
    experts_code(s, n % 2 ? ATTN_I4 : ATTN_I8, groups[n / 3 % 4], n / 4 % 2, &rng);
    experts_check(s, 3e-5, "codes");
    const attn_tensor y = test_tensor(s->y.dtype, TEST_BHTD, 1, 1, x.rows, x.dout);
    experts one = *s;
    one.p.expert = NULL, one.p.weight = one.p.logits = absent(), one.does.scene = &one;
    for (int64_t i = 0; i < x.rows; i++) {
      one.x = test_rows(s->x, i, 1), one.y = test_rows(y, i, 1);
      promise_run(&one.does);
    }
    test_assert_same(y, s->y, "rows by themselves");
    if (n == 1 || n == 6) promise_keep(&s->does);
    if (n < 4) {
      attn_scales *const scales[] = {&s->p.experts.w_1_scales, &s->p.experts.w_2_scales,
                                     &s->p.experts.w_3_scales};
      const attn_scales whole = *scales[n % 3];
      const char *const word[] = {"params.experts.w_1_scales", "params.experts.w_2_scales",
                                  "params.experts.w_3_scales"};
      if (n % 3 == 2 && !x.gated) continue;
      scales[n % 3]->scale = NULL;
      promise_reject(&s->does, ATTN_E_NULL, word[n % 3]);
      *scales[n % 3] = whole, scales[n % 3]->group = 33;
      promise_reject(&s->does, ATTN_E_SHAPE, word[n % 3]);
      *scales[n % 3] = whole, scales[n % 3]->scale = s->y.data;
      promise_reject(&s->does, ATTN_E_OVERLAP, "y ");
      *scales[n % 3] = whole, s->p.experts.w_1 = s->wide.w_1;
      if (n % 3 == 0) promise_reject(&s->does, ATTN_E_DTYPE, word[0]);
    }
  }
}

/* Equal logits: the lowest experts, and groups; saturated scores are told apart by their logits. */
void K8_ties(void **state) {
  (void)state;
  test_rng rng = test_seed(8103);
  experts_shape x = experts_plain(9, 12, 4);
  x.biases = 0;
  experts *s = experts_build(&x, &rng);
  for (int n = 0; n < 4; n++) {
    test_fill_value(s->p.w_gate, n % 2 ? 0.125 : 0);
    s->p.score = n / 2 ? ATTN_EXPERTS_SIGMOID : ATTN_EXPERTS_SOFTMAX;
    s->p.groups = 4, s->p.group_k = 2;
    experts_check(s, 3e-5, "ties");
    for (int64_t i = 0; i < 9 * 4; i++) assert_int_equal(s->p.expert[i], i % 4);
  }
  s->p.groups = s->p.group_k = 0, s->p.no_renormalize = 1;
  s->p.b_gate = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, 1, 12);
  test_fill_value(s->p.w_gate, 0);
  for (int e = 0; e < 12; e++)
    oracle_set(&s->p.b_gate, 0, 0, 0, e, 20 + e); /* sigmoids of 1 in f32 */
  experts_check(s, 3e-5, "saturated");
  assert_int_equal(s->p.expert[0], 11);
  test_mem_release();
}

/* Nearly all rows at one expert, in more than an item's rows and more than a run's, and several workers. */
void K8_hot(void **state) {
  (void)state;
  test_rng rng = test_seed(8104);
  for (int n = 0; n < 3; n++, test_mem_release()) {
    experts_shape x = experts_plain(test_fast ? 300 : 530, n ? 7 : 2, n + 1);
    x.din = 19, x.dff = 70, x.dout = 33, x.w_type = (attn_dtype)n;
    experts *s = experts_build(&x, &rng);
    oracle_set(&s->p.b_gate, 0, 0, 0, 1, 30);
    if (n == 1) experts_turn(s);
    experts_check(s, 3e-5, "a hot expert");
    if (n < 2) promise_keep(&s->does);
  }
}

/* The bits of a row are its own: rows by themselves, in other company, in any cut, in place. */
void K8_rows_alone(void **state) {
  (void)state;
  test_rng rng = test_seed(8105);
  for (int n = 0; n < 6; n++, test_mem_release()) {
    static const int64_t cut[] = {1, 5, 70, 200};
    experts_shape x = experts_plain(test_fast ? 150 : 333, 5, 3);
    x.din = x.dout = 150, x.dff = 97, x.w_type = (attn_dtype)(n % 3), x.shared = n % 3;
    x.gated = n != 4;
    if (n == 5) x.dff = 0;
    experts *s = experts_build(&x, &rng);
    options(s, n + 3, &rng);
    if (n > 2) experts_turn(s);
    promise_run(&s->does);
    const attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, x.rows, 150);
    for (int c = 0; c < 4; c++) {
      experts part = *s;
      for (int64_t i = 0; i < x.rows; i += cut[c]) {
        const int64_t rows = x.rows - i < cut[c] ? x.rows - i : cut[c];
        part.x = test_rows(s->x, i, rows), part.y = test_rows(y, i, rows);
        part.p.expert = NULL, part.p.weight = part.p.logits = absent();
        part.does.scene = &part;
        promise_run(&part.does);
      }
      test_assert_same(y, s->y, "a cut");
    }
    experts here = *s;
    test_copy(y, s->x);
    here.x = here.y = y, here.does.scene = &here;
    promise_run(&here.does);
    test_assert_same(y, s->y, "in place");
  }
}

/* The sum goes in the order of the experts, not of their ranks: 1e8 + 1 - 1e8 is 0 in f32. */
void K8_order(void **state) {
  (void)state;
  static const double logit[] = {30, 25, 28}, makes[] = {1e8, 1, -1e8};
  test_rng rng = test_seed(8114);
  experts_shape x = experts_plain(3, 3, 3);
  experts *s = experts_build(&x, &rng);
  s->p.score = ATTN_EXPERTS_SIGMOID, s->p.no_renormalize = 1; /* weights of 1 */
  test_fill_value(s->p.w_gate, 0), test_fill_value(s->p.experts.w_2, 0);
  for (int64_t e = 0; e < 3; e++) {
    oracle_set(&s->p.b_gate, 0, 0, 0, e, logit[e]);
    for (int64_t c = 0; c < x.dout; c++) oracle_set(&s->p.experts.b_2, 0, e, 0, c, makes[e]);
  }
  promise_run(&s->does);
  assert_int_equal(s->p.expert[1], 2);
  for (int64_t i = 0; i < 3; i++) assert_true(oracle_get(&s->y, 0, 0, i, 0) == 0);
}

/* Entries whose rows lie at equal steps go together, others one by one: the same bits. */
void K8_batches(void **state) {
  (void)state;
  test_rng rng = test_seed(8106);
  experts_shape x = experts_plain(40, 4, 2);
  x.batch = 3;
  experts *s = experts_build(&x, &rng);
  experts_check(s, 3e-5, "flat");
  experts other = *s;
  other.x = test_tensor(ATTN_F32, TEST_PADDED, 3, 1, 40, x.din), test_copy(other.x, s->x);
  other.y = test_tensor(ATTN_F32, TEST_NEGATIVE, 3, 1, 40, x.dout);
  other.p.expert = test_mem(3 * 40 * 2 * sizeof(int32_t));
  other.does.scene = &other;
  promise_run(&other.does);
  test_assert_same(other.y, s->y, "entries");
  assert_memory_equal(other.p.expert, s->p.expert, 3 * 40 * 2 * sizeof(int32_t));
  test_mem_release();
}

/* Weights of experts that no row is sent to are not read: they lie in pages that cannot be. */
static attn_tensor behind_pages(attn_tensor w, int64_t page) {
  const int64_t size = w.dtype == ATTN_F32 ? 4 : 2, one = w.len * w.dim * size;
  const int64_t each = (one + page - 1) / page * page;
  char *data = mmap(NULL, (size_t)(w.heads * each), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_true(data != MAP_FAILED);
  attn_tensor t = attn_bhtd(data, w.dtype, 1, w.heads, w.len, w.dim);
  t.stride_head = each / size;
  test_copy(t, w);
  return t;
}

void K8_reads_what_is_chosen(void **state) {
  (void)state;
  test_rng rng = test_seed(8107);
  const int64_t page = (int64_t)sysconf(_SC_PAGESIZE);
  for (int n = 0; n < 12; n++, test_mem_release()) {
    experts_shape x = experts_plain(n % 4 == 3 ? 40 : 1, 8, 2);
    x.din = 150, x.dff = 100, x.dout = 70, x.w_type = (attn_dtype)(n % 3), x.biases = 1;
    experts *s = experts_build(&x, &rng);
    attn_feed_forward *ff = &s->p.experts;
    attn_tensor *const w[] = {&ff->w_1, &ff->w_2, &ff->w_3, &ff->b_1, &ff->b_2, &ff->b_3};
    oracle_set(&s->p.b_gate, 0, 0, 0, 3, 300), oracle_set(&s->p.b_gate, 0, 0, 0, 6, 200);
    if (n > 5) experts_turn(s);
    promise_run(&s->does);
    const attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, x.rows, 70);
    test_copy(y, s->y);
    for (int i = 0; i < 6; i++) {
      *w[i] = behind_pages(*w[i], page);
      const int64_t size = w[i]->stride_head * (w[i]->dtype == ATTN_F32 ? 4 : 2);
      for (int64_t e = 0; e < 8; e++)
        if (e != 3 && e != 6)
          assert_int_equal(mprotect((char *)w[i]->data + e * size, (size_t)size, PROT_NONE), 0);
    }
    promise_run(&s->does);
    test_assert_same(s->y, y, "experts behind walls");
    for (int i = 0; i < 6; i++)
      munmap(w[i]->data, (size_t)(8 * w[i]->stride_head * (w[i]->dtype == ATTN_F32 ? 4 : 2)));
  }
}

/* Rows with a NaN are NaN alone; a logit that is NaN comes last; a softmax over nothing has weights of 0. */
void K8_nan(void **state) {
  (void)state;
  test_rng rng = test_seed(8108);
  for (int n = 0; n < 4; n++, test_mem_release()) {
    experts_shape x = experts_plain(n < 2 ? 30 : 250, 6, 2);
    experts *s = experts_build(&x, &rng);
    options(s, n, &rng);
    promise_run(&s->does);
    attn_tensor y = test_tensor(ATTN_F32, TEST_BHTD, 1, 1, x.rows, x.dout);
    test_copy(y, s->y);
    test_fill_row(s->x, 0, 0, 7, (double)NAN);
    promise_run(&s->does);
    for (int64_t c = 0; c < x.dout; c++) assert_true(isnan(oracle_get(&s->y, 0, 0, 7, c)));
    assert_int_equal(s->p.expert[14], 0), assert_int_equal(s->p.expert[15], 1);
    test_fill_row(s->y, 0, 0, 7, 0), test_fill_row(y, 0, 0, 7, 0);
    test_assert_same(s->y, y, "rows beside a NaN");
  }
  experts_shape x = experts_plain(5, 4, 2);
  experts *s = experts_build(&x, &rng);
  s->p.score = ATTN_EXPERTS_SIGMOID;
  oracle_set(&s->p.b_gate, 0, 0, 0, 0, (double)NAN); /* never chosen, and without effect */
  promise_run(&s->does);
  for (int64_t i = 0; i < 10; i++) assert_int_not_equal(s->p.expert[i], 0);
  for (int64_t i = 0; i < 5; i++) assert_true(!isnan(oracle_get(&s->y, 0, 0, i, 0)));
  s->p.k = 4, s->p.expert = NULL, s->p.weight = absent();
  promise_run(&s->does);
  for (int64_t i = 0; i < 5; i++) assert_true(isnan(oracle_get(&s->y, 0, 0, i, 0)));
  s->p.score = ATTN_EXPERTS_SOFTMAX, s->p.k = 2;
  promise_run(&s->does);
  for (int64_t i = 0; i < 5; i++) assert_true(isnan(oracle_get(&s->y, 0, 0, i, 0)));
  for (int e = 0; e < 4; e++) oracle_set(&s->p.b_gate, 0, 0, 0, e, -(double)INFINITY);
  for (int n = 0; n < 2; n++) {
    s->p.no_renormalize = n;
    promise_run(&s->does);
    for (int64_t i = 0; i < 5; i++) assert_true(oracle_get(&s->y, 0, 0, i, 0) == 0);
  }
}

void K8_empty(void **state) {
  (void)state;
  test_rng rng = test_seed(8109);
  for (int n = 0; n < 2; n++, test_mem_release()) {
    experts_shape x = experts_plain(4, 3, 2);
    experts *s = experts_build(&x, &rng);
    attn_ctx ctx = test_ctx();
    attn_tensor *const t[] = {&s->y, &s->x, &s->p.weight, &s->p.logits};
    for (int i = 0; i < 4; i++) *(n ? &t[i]->batch : &t[i]->len) = 0, t[i]->data = NULL;
    assert_int_equal(attn_expert_rows(s->y, s->x, &s->p, &ctx), ATTN_OK);
    assert_int_equal(ctx.report.pairs, 0);
    assert_int_equal(attn_expert_rows_workspace(s->y, s->x, &s->p, &ctx), 0);
    s->p.k = 9;
    assert_int_equal(attn_expert_rows(s->y, s->x, &s->p, &ctx), ATTN_E_RANGE);
  }
}

void K8_promises(void **state) {
  (void)state;
  test_rng rng = test_seed(8110);
  for (int n = 0; n < 6; n++, test_mem_release()) {
    experts_shape x = experts_plain(n % 2 ? 1 : 70, 6, 3);
    x.batch = 1 + n % 3, x.dff = n == 3 ? 0 : 300, x.dout = 200, x.shared = n % 3;
    x.x_type = (attn_dtype)(n % 3), x.w_type = (attn_dtype)(n / 2 % 3);
    x.y_type = (attn_dtype)(n % 2), x.layout = (test_layout)(n % 4);
    experts *s = experts_build(&x, &rng);
    options(s, n, &rng);
    if (n > 3) experts_turn(s);
    promise_keep(&s->does);
  }
}

/* No weight of an expert is laid out: the workspace has less than one matrix of one of them. */
void K8_workspace(void **state) {
  (void)state;
  const attn_ctx ctx = test_ctx();
  for (int n = 0; n < 12; n++) {
    attn_expert_rows_params p;
    const attn_dtype type = (attn_dtype)(n % 3);
    const int64_t rows = n > 5 ? 1 : 96, e = 128, dm = 4096, dff = 8192;
    void *at = (void *)(uintptr_t)4096;
    memset(&p, 0, sizeof p);
    p.w_gate = attn_bhtd(at, ATTN_F32, 1, 1, dm, e), p.k = 8;
    p.experts.w_1 = p.experts.w_3 = attn_bhtd(at, type, 1, e, dm, dff);
    p.experts.w_2 = attn_bhtd(at, type, 1, e, dff, dm);
    if (n / 3 % 2) {
      p.experts.w_transposed = 1, p.experts.w_2 = p.experts.w_1;
      p.experts.w_1 = p.experts.w_3 = attn_bhtd(at, type, 1, e, dff, dm);
    }
    const attn_tensor y = attn_bhtd((void *)(uintptr_t)0x70000000u, ATTN_F32, 1, 1, rows, dm);
    attn_tensor x = attn_bhtd(at, ATTN_F32, 1, 1, rows, dm);
    if (sizeof(void *) == 4) break; /* such weights do not fit */
    x.data = (void *)(uintptr_t)0x60000000u;
    p.w_gate.stride_len = p.experts.w_1.stride_head = p.experts.w_1.stride_len = 0;
    p.experts.w_2.stride_head = p.experts.w_2.stride_len = 0;
    p.experts.w_3 = p.experts.w_1;
    const size_t have = attn_expert_rows_workspace(y, x, &p, &ctx);
    const double pairs = (double)rows * 8;
    assert_true(have != ATTN_WORKSPACE_REJECTED);
    const double most = (double)rows * (4 * 128 + 4 * 4096) +
                        pairs * (4 * 8192 + 4 * 4096 + 48 + 256) + 420 * 1024 + 20 * 128 + 16384 +
                        64 * 1024 + 4.0 * 4096 * 128; /* the gate's own panels */
    if (!((double)have <= most)) fail_msg("%d: %.0f bytes, not %.0f", n, (double)have, most);
  }
}

void K8_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(8111);
  for (int n = 0; n < 41; n++, test_mem_release()) {
    experts_shape x = experts_plain(6, 6, 2);
    x.shared = 2;
    experts *s = experts_build(&x, &rng);
    attn_expert_rows_params *p = &s->p;
    attn_feed_forward *ff = &p->experts;
    attn_status want = ATTN_E_SHAPE;
    const char *word = "params.w_gate";
    p->choice_bias = drawn(ATTN_F32, TEST_BHTD, 1, 1, 1, 6, 1, &rng);
    p->groups = 3, p->group_k = 2;
    switch (n) {
      case 0: p->w_gate.data = NULL, want = ATTN_E_NULL; break;
      case 1: p->w_gate.len = 7; break;
      case 2: p->b_gate.dim = 5, word = "params.b_gate"; break;
      case 3: p->choice_bias.dim = 5, word = "params.choice_bias"; break;
      case 4: p->k = 0, want = ATTN_E_RANGE, word = "params.k "; break;
      case 5: p->k = 7, want = ATTN_E_RANGE, word = "params.k "; break;
      case 6: p->groups = 4, want = ATTN_E_RANGE, word = "params.groups"; break;
      case 7: p->groups = -1, want = ATTN_E_RANGE, word = "params.groups"; break;
      case 8: p->group_k = 4, want = ATTN_E_RANGE, word = "params.group_k"; break;
      case 9: p->group_k = -1, want = ATTN_E_RANGE, word = "params.group_k"; break;
      case 10: p->group_k = 1, p->k = 3, want = ATTN_E_RANGE, word = "params.k must not"; break;
      case 11:
        p->score = ATTN_EXPERTS_SCORE_COUNT, want = ATTN_E_RANGE, word = "params.score";
        break;
      case 12:
        p->group_by = ATTN_EXPERTS_GROUP_COUNT, want = ATTN_E_RANGE, word = "params.group_by";
        break;
      case 13:
        p->groups = 6, p->group_by = ATTN_EXPERTS_GROUP_SUM, want = ATTN_E_RANGE;
        word = "params.group_by";
        break;
      case 14: p->scale = (float)NAN, want = ATTN_E_VALUE, word = "params.scale"; break;
      case 15: p->scale = INFINITY, want = ATTN_E_VALUE, word = "params.scale"; break;
      case 16: ff->w_1.data = NULL, want = ATTN_E_NULL, word = "params.experts.w_1"; break;
      case 17: ff->w_1.heads = 5, word = "params.experts.w_1"; break;
      case 18: ff->b_1.heads = 1, word = "params.experts.b_1"; break;
      case 19: ff->w_2.dim = 19, word = "params.experts.w_2"; break;
      case 20: ff->w_3.heads = 1, word = "params.experts.w_3"; break;
      case 21: ff->b_3.dim = 36, word = "params.experts.b_3"; break;
      case 22:
        ff->w_3.data = NULL, want = ATTN_E_NULL, word = "params.experts.w_3 must not be null";
        break;
      case 38: ff->form.limit = (float)NAN, want = ATTN_E_VALUE, word = "form.limit"; break;
      case 23:
        ff->activation = ATTN_ACT_COUNT, want = ATTN_E_RANGE, word = "params.experts.activation";
        break;
      case 24: p->shared.w_1.data = NULL, want = ATTN_E_NULL, word = "params.shared.w_1"; break;
      case 25: p->shared.w_2.len = 36, word = "params.shared.w_2"; break;
      case 26: p->w_shared.dim = 2, word = "params.w_shared"; break;
      case 27: p->weight.dim = 3, word = "params.weight"; break;
      case 28: p->weight.dtype = ATTN_F16, want = ATTN_E_DTYPE, word = "params.weight"; break;
      case 29: p->logits.len = 5, word = "params.logits"; break;
      case 30: p->expert = (int32_t *)s->y.data, want = ATTN_E_OVERLAP, word = "y "; break;
      case 31:
        p->weight.data = p->logits.data, want = ATTN_E_OVERLAP, word = "params.weight";
        break;
      case 32: s->x.len = 5, word = "x must"; break;
      case 33: ff->w_2.data = s->y.data, want = ATTN_E_OVERLAP, word = "y "; break;
      case 34:
        p->choice_bias.data = p->logits.data, want = ATTN_E_OVERLAP, word = "params.logits";
        break;
      case 35: s->x = s->y, s->x.data = (char *)s->y.data + 4, word = "params.w_gate"; break;
      case 36:
        p->expert = (int32_t *)((char *)p->expert + 1), want = ATTN_E_ALIGN, word = "params.expert";
        break;
      case 39:
        p->shared.w_2_scales.scale = s->y.data;
        want = ATTN_E_DTYPE,
        word = "params.shared.w_2_scales must be all zero unless params.shared.w_2";
        break;
      case 40:
        p->shared.compute = ATTN_COMPUTE_I8, want = ATTN_E_VALUE, word = "params.shared.compute:";
        break;
      default: ff->w_1.dtype = ATTN_E4M3, want = ATTN_E_DTYPE, word = "params.experts.w_1"; break;
    }
    promise_reject(&s->does, want, word);
    attn_ctx ctx = test_ctx();
    assert_int_equal(attn_expert_rows_workspace(s->y, s->x, p, &ctx), ATTN_WORKSPACE_REJECTED);
  }
  experts_shape x = experts_plain(6, 6, 2);
  experts *s = experts_build(&x, &rng);
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_expert_rows(s->y, s->x, NULL, &ctx), ATTN_E_NULL);
  assert_non_null(strstr(ctx.reason, "params"));
}

/* Products of bf16 and f16. */
void O1_experts(void **state) {
  (void)state;
  test_rng rng = test_seed(8112);
  for (int n = 0; n < 3; n++, test_mem_release()) {
    experts_shape x = experts_plain(n ? 9 : 250, 4, 2);
    x.din = 33, x.dff = n == 1 ? 0 : 70, x.dout = 50, x.w_type = n == 2 ? ATTN_BF16 : ATTN_F32;
    experts *s = experts_build(&x, &rng);
    if (n == 2) experts_turn(s);
    test_layer(&s->does, &s->p.experts.compute, &s->p.experts.compute_prefer, 0, 0.03,
               "params.experts.compute");
  }
}
