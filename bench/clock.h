/* clock.h owns time and place: a wall clock, and the cores a thread may run on. */
#ifndef BENCH_CLOCK_H
#define BENCH_CLOCK_H

#ifdef __cplusplus
extern "C" {
#endif

/* Seconds of a clock that only goes forward. */
double clock_now(void);

/* Seconds that the calling thread has run. The same as clock_now on an idle machine; on a shared
 * one it leaves out the time that other processes had the core. For work of one thread. */
double clock_busy(void);

/* Cores this process was given at the start. */
int clock_cores(void);

/* Binds the calling thread to the n-th of them, counted from 0; -1 = all of them again. */
void clock_pin(int n);

#ifdef __cplusplus
}
#endif
#endif
