/* threads.h owns how calls scale: an entry's call by one worker, by two and by one a core, in turn. C++. */
#ifndef BENCH_THREADS_H
#define BENCH_THREADS_H

#include "case.h"

/* Of two workers on two cores; of more in proportion. */
constexpr double kScalingGoal = 1.95;

/* Starts the pool; from here on case_ctx brings it and its workers. */
void threads_open();
void threads_close();

/* The entry's call against itself by more workers: the ready-made pool of docs/examples and attn_parallel_openmp. */
std::unique_ptr<Case> scaling_case(const std::string &name, std::unique_ptr<Case> entry);

/* The limits: multiply-adds and reads that share nothing. */
void register_limits(const Selection &s);

/* After the last entry: whose speed-up is below the goal, and what else ran meanwhile. */
void threads_summary();

#endif
