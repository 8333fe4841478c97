/* tests/porting/pages.h owns the names that lines of C on pages leave to their reader. */
#include <stdio.h>
#include <stdlib.h>

#include "attn.h"

extern attn_tensor q, k, v, o, x, y, map, each, votes, w_l, w_w, w_q, w_k, w_v, q_next, k_next,
    v_next, o_next;
extern attn_ctx ctx;
extern int64_t batch, heads, kv_heads, q_len, kv_len, head_dim, v_dim, H, T;
extern int64_t *indptr;
extern int32_t *col;
extern float *q_data, *k_data, *v_data, *o_data;
