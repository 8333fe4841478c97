/* peak.h owns the limits of the machine: multiply-add rate of each tier and read bandwidth. */
#ifndef BENCH_PEAK_H
#define BENCH_PEAK_H

#include <stddef.h>

#include "header.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What the probes of one tier found so far, GFLOP/s of one core. Probes sit before, between and
 * after the measurements of a run; the peak is the largest, for noise only ever slows one down. */
typedef struct peak_record {
  double max, min, sum;
  int probes;
} peak_record;

/* One probe of about 1 ms: a loop of independent fused multiply-adds on registers, as wide as
 * the tier. The scalar tier is probed with the vectors of the baseline target, multiply and add
 * apart unless the baseline fuses them: what a compiler could make of plain C at best. Returns
 * GFLOP/s, adds to the record, and 0 when this machine cannot run the tier. */
double peak_probe(attn_isa isa);

/* The same of the products of a feature; 0 when this machine has it not. */
double peak_feature_probe(attn_feature feature);

/* One run of the probe's loop, some 50 us, and nothing beside. */
void peak_steps(attn_isa isa);

/* Reads so many bytes, a multiple of 4096, as the probe of the bandwidth does. */
float peak_read(const float *data, size_t bytes);

/* The record of a tier. */
const peak_record *peak_of(attn_isa isa);

/* Prints one line: largest, mean and smallest probe of a tier. */
void peak_print(attn_isa isa);

/* Read bandwidth in GB/s, best of a few passes, of `threads` threads that each read their own
 * `bytes` bytes over and over; 0 when memory is short. */
double peak_read_bandwidth(size_t bytes, int threads);

/* Bytes per thread that sit in L2, in L3, or in neither (level 2, 3, 4). */
size_t peak_level_bytes(int level, int threads);

#ifdef __cplusplus
}
#endif
#endif
