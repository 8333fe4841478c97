/* progress.h owns the bar of a long job, on stderr: how far it is, how fast, how long it still takes.
 *
 *   progress bar = progress_begin("prefill", "tokens", 4096);
 *   progress_to(&bar, 1024);    as often as you like; it is drawn ten times a second at most
 *   progress_end(&bar);         wipes it
 *
 * In a pipe or a file nothing is written. Needs POSIX: _POSIX_C_SOURCE 200809L before the first header. */
#ifndef EXAMPLES_PROGRESS_H
#define EXAMPLES_PROGRESS_H

#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

typedef struct progress {
  const char *what, *unit;
  int64_t total; /* 0: unknown, and no bar is drawn, only counts */
  double began, drawn;
  int shown; /* something stands on the line */
  int on;    /* stderr is a terminal */
} progress;

/* Seconds of a clock that only goes forward. */
static inline double progress_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline progress progress_begin(const char *what, const char *unit, int64_t total) {
  const double now = progress_now();
  return (progress){.what = what,
                    .unit = unit,
                    .total = total,
                    .began = now,
                    .drawn = now,
                    .on = isatty(fileno(stderr))};
}

static inline void progress_to(progress *bar, int64_t done) {
  enum { WIDTH = 30 };
  const double now = bar->on ? progress_now() : 0, seconds = now - bar->began;
  if (!bar->on || now - bar->drawn < 0.1) return;
  const double rate = seconds > 0 ? (double)done / seconds : 0;
  char cells[WIDTH + 3] = "";
  if (bar->total > 0) {
    const double part = (double)done / (double)bar->total;
    const int full = (int)(WIDTH * (part < 0 ? 0 : part > 1 ? 1 : part));
    cells[0] = '[';
    for (int i = 0; i < WIDTH; i++) cells[1 + i] = i < full ? '#' : '.';
    cells[WIDTH + 1] = ']';
  }
  fprintf(stderr, "\r%s %s %lld %s, %.4g/s", bar->what, cells, (long long)done, bar->unit, rate);
  if (bar->total > done && rate > 0)
    fprintf(stderr, ", %.0f s left", (double)(bar->total - done) / rate);
  fputs("\033[K", stderr); /* what an older, longer line has left */
  fflush(stderr);
  bar->drawn = now;
  bar->shown = 1;
}

static inline void progress_end(progress *bar) {
  if (bar->shown) fputs("\r\033[K", stderr);
  bar->shown = 0;
}

#endif
