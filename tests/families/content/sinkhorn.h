/* tests/families/content/sinkhorn.h owns the oracle of attention over sorted blocks, in float64 from the formulas. */

#ifndef TESTS_SINKHORN_H
#define TESTS_SINKHORN_H

#include "compound.h"

/* Sums of blocks. */
cube sinkhorn_blocks(const attn_tensor *x, const attn_sinkhorn_params *p);
/* Logits of `heads` heads from descriptors. */
cube sinkhorn_logits(const cube *y, int64_t heads, const attn_sinkhorn_params *p);
/* P of batch entries and heads; r may have one of either. */
cube sinkhorn_balance(const cube *r, int64_t batch, int64_t heads, const attn_sinkhorn_params *p);
/* The source of place i in a row of P: -1 for none. */
int64_t sinkhorn_choice(const double *row, int64_t i, int64_t blocks,
                        const attn_sinkhorn_params *p);
/* Outputs, and LSE [B,H,Tq,1], from P of [B,H,NB,NB]; cut: SortCut. */
void sinkhorn_attend(cube *o, cube *lse, const attn_tensor *q, const attn_tensor *k,
                     const attn_tensor *v, const cube *sort, const attn_sinkhorn_params *p,
                     int cut);

#endif
