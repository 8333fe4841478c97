/* tests/families/training/test_global_norm.c owns N7, the norm of all gradients and the factor that clips them. */

#include "compound.h"

enum { ARRAYS = 40 };

typedef struct model {
  attn_flat_array x[ARRAYS];
  int64_t arrays;
} model;

/* Arrays of a few elements to a few blocks, some empty. */
static model model_of(int64_t arrays, test_rng *rng) {
  model a;
  memset(&a, 0, sizeof a);
  a.arrays = arrays;
  for (int64_t i = 0; i < arrays; i++) {
    const int kind = (int)test_range(rng, 0, 4);
    a.x[i].n = kind == 0 ? 0 : kind == 1 ? 4096 : test_range(rng, 1, kind == 2 ? 40 : 20000);
    if (a.x[i].n) a.x[i].data = test_floats(a.x[i].n, 1, rng);
  }
  return a;
}

/* The order that is promised. */
static double square_of(const model *a) {
  double all = 0;
  for (int64_t i = 0; i < a->arrays; i++)
    for (int64_t at = 0; at < a->x[i].n; at += 4096) {
      double s[16] = {0};
      for (int64_t c = at; c < at + 4096 && c < a->x[i].n; c++)
        s[(c - at) % 16] += (double)a->x[i].data[c] * (double)a->x[i].data[c];
      for (int half = 8; half; half /= 2)
        for (int k = 0; k < half; k++) s[k] += s[k + half];
      all += s[0];
    }
  return all;
}

void N7_global_norm(void **state) {
  (void)state;
  static const attn_parallel_fn order[3] = {test_parallel_forward, test_parallel_backward,
                                            test_parallel_threads};
  test_rng rng = test_seed(9710);
  for (int64_t k = test_count(40, 12); k-- > 0; test_mem_release()) {
    const model a = model_of(test_range(&rng, 0, ARRAYS), &rng);
    const double want = sqrt(square_of(&a)), most = k % 3 ? 1 : 1e9;
    double plain = 0;
    for (int64_t i = 0; i < a.arrays; i++)
      for (int64_t c = 0; c < a.x[i].n; c++)
        plain += (double)a.x[i].data[c] * (double)a.x[i].data[c];
    for (int w = 0; w < 7; w++) {
      double norm = -1, clip = -1;
      attn_ctx ctx = test_ctx();
      if (w) ctx.workers = w + 1, ctx.parallel_for = order[w % 3];
      const size_t size = attn_global_norm_workspace(&norm, &clip, a.x, a.arrays, most, &ctx);
      assert_true(size != ATTN_WORKSPACE_REJECTED);
      const int64_t mallocs = test_malloc_calls;
      if (w > 2 && size) ctx.workspace = test_mem(size), ctx.workspace_size = size;
      assert_int_equal(
          attn_global_norm(w == 1 ? NULL : &norm, w == 2 ? NULL : &clip, a.x, a.arrays, most, &ctx),
          ATTN_OK);
      assert_int_equal(ctx.report.isa, test_isa);
      if (w > 2) assert_int_equal(test_malloc_calls, mallocs);
      assert_true(w == 1 ? norm == -1 : norm == want);
      assert_true(w == 2 ? clip == -1 : clip == fmin(1, most / (want + 1e-6)));
      if (w > 2 && size) {
        norm = clip = -1, ctx.workspace_size--;
        assert_int_equal(attn_global_norm(&norm, &clip, a.x, a.arrays, most, &ctx),
                         ATTN_E_WORKSPACE);
        assert_true(norm == -1 && clip == -1);
      }
    }
    assert_true(fabs(want - sqrt(plain)) <= 1e-13 * want);
  }
}

/* The ends of floats: nothing overflows; no clipping, all of it, none of the norm. */
void N7_global_norm_ends(void **state) {
  (void)state;
  const float large[] = {3.4e38f, -3.4e38f, 0}, small[] = {1e-40f, 0, 0};
  const attn_flat_array x[] = {{large, 3}, {small, 3}};
  double norm, clip;
  attn_ctx ctx = test_ctx();
  assert_int_equal(attn_global_norm(&norm, &clip, x, 2, (double)INFINITY, &ctx), ATTN_OK);
  assert_true(fabs(norm - (double)3.4e38f * sqrt(2)) < 1e24 && clip == 1);
  assert_int_equal(attn_global_norm(&norm, &clip, x + 1, 1, 0, &ctx), ATTN_OK);
  assert_true(fabs(norm / (double)1e-40f - 1) < 1e-12 && clip == 0 && signbit(clip));
  assert_int_equal(attn_global_norm(&norm, &clip, NULL, 0, 1e-7, &ctx), ATTN_OK);
  assert_true(norm == 0 && fabs(clip - 0.1) < 1e-12);
  assert_int_equal(attn_global_norm(NULL, NULL, x, 2, 1, &ctx), ATTN_OK);
  assert_string_equal(ctx.report.path, "no-op");
}

void N7_global_norm_rejects(void **state) {
  (void)state;
  test_rng rng = test_seed(9711);
  for (int k = 0; k < 17; k++, test_mem_release()) {
    double room[2] = {7, 7}, *norm = room, *clip = room + 1, most = 1;
    attn_flat_array x[3];
    const attn_flat_array *at = x;
    int64_t arrays = 3;
    attn_status want = ATTN_E_VALUE;
    const char *word = "";
    attn_ctx ctx = test_ctx();
    float *first = test_floats(20, 1, &rng), *last = test_floats(5000, 1, &rng);
    x[0].data = first, x[0].n = 20, x[1].data = NULL, x[1].n = 0, x[2].data = last, x[2].n = 5000;
    switch (k) {
      case 0: last[4999] = NAN, word = "not finite"; break;
      case 1: last[4999] = INFINITY, word = "not finite"; break;
      case 2: last[0] = -INFINITY, word = "not finite"; break;
      case 3: most = -1, word = "most"; break;
      case 4: most = (double)NAN, word = "most"; break;
      case 5: x[1].n = -1, want = ATTN_E_SHAPE, word = "x[i].n"; break;
      case 6: arrays = -1, want = ATTN_E_SHAPE, word = "arrays"; break;
      case 7: x[1].n = 1, want = ATTN_E_NULL, word = "x[i].data"; break;
      case 8: at = NULL, want = ATTN_E_NULL, word = "x must"; break;
      case 9:
        x[0].data = (const float *)(const void *)((const char *)first + 1);
        want = ATTN_E_ALIGN, word = "x[i].data";
        break;
      case 10:
        norm = (double *)(void *)((char *)room + 4), clip = NULL;
        want = ATTN_E_ALIGN, word = "norm";
        break;
      case 11: clip = norm, want = ATTN_E_OVERLAP, word = "norm"; break;
      case 12:
        x[0].data = (const float *)(const void *)room, x[0].n = 2;
        want = ATTN_E_OVERLAP, word = "norm";
        break;
      case 13:
        x[0].data = (const float *)(const void *)(room + 1), x[0].n = 1;
        want = ATTN_E_OVERLAP, word = "clip";
        break;
      case 14: x[2].n = INT64_MAX / 4, want = ATTN_E_OVERFLOW; break;
      case 15:
        ctx.workspace = last + 20, ctx.workspace_size = 4096;
        want = ATTN_E_OVERLAP, word = "ctx.workspace";
        break;
      default: clip = (double *)(void *)x, want = ATTN_E_OVERLAP, word = "clip"; break;
    }
    const attn_flat_array before = x[0];
    const attn_status got = attn_global_norm(norm, clip, at, arrays, most, &ctx);
    if (got != want || !ctx.reason || !strstr(ctx.reason, word))
      fail_msg("%d: %s, not %s about %s (%s)", k, attn_status_string(got), attn_status_string(want),
               word, ctx.reason ? ctx.reason : "no reason");
    assert_true(x[0].n == before.n && x[0].data == before.data);
    assert_true(room[0] == 7 && room[1] == 7);
    if (k > 2 && k != 15)
      assert_true(attn_global_norm_workspace(norm, clip, at, arrays, most, NULL) ==
                  ATTN_WORKSPACE_REJECTED);
  }
}
