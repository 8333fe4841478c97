/* header.h owns which text of attn.h the benchmarks measure: the source tree by default,
 * -DBENCH_ATTN_H='"attn.h"' for the generated file. */
#ifndef BENCH_HEADER_H
#define BENCH_HEADER_H

#ifndef BENCH_ATTN_H
#define BENCH_ATTN_H "all.h"
#endif
#include BENCH_ATTN_H

#endif
