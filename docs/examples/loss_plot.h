/* loss_plot.h owns the picture of losses over steps, an SVG: those of the batches learned from, smoothed and as they
 * are, and those of what was held out. */
#ifndef EXAMPLES_LOSS_PLOT_H
#define EXAMPLES_LOSS_PLOT_H

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum {
  PLOT_WIDTH = 720,
  PLOT_HEIGHT = 400,
  PLOT_LEFT = 60,
  PLOT_RIGHT = 20,
  PLOT_TOP = 40,
  PLOT_BOTTOM = 50
};

typedef struct loss_plot {
  FILE *file;
  int64_t steps;
  double low, high; /* losses at the lower and the upper end */
} loss_plot;

static double loss_plot_x_(const loss_plot *p, int64_t step) {
  return PLOT_LEFT +
         (double)(PLOT_WIDTH - PLOT_LEFT - PLOT_RIGHT) * (double)step / (double)p->steps;
}

static double loss_plot_y_(const loss_plot *p, double loss) {
  return PLOT_TOP + (PLOT_HEIGHT - PLOT_TOP - PLOT_BOTTOM) * (p->high - loss) / (p->high - p->low);
}

/* A line through the losses that are there; with keep < 1 their running mean, which keeps that share a step. */
static void loss_plot_line_(const loss_plot *p, const float *loss, double keep, const char *style) {
  double mean = 0, weight = 0;
  fputs("<polyline fill=\"none\" points=\"", p->file);
  for (int64_t i = 0; i < p->steps; i++) {
    if (!isfinite(loss[i])) continue;
    mean = keep * mean + (1 - keep) * loss[i];
    weight = keep * weight + (1 - keep);
    fprintf(p->file, "%.1f,%.1f ", loss_plot_x_(p, i + 1), loss_plot_y_(p, mean / weight));
  }
  fprintf(p->file, "\" %s/>\n", style);
}

static void loss_plot_axes_(const loss_plot *p) {
  const double right = PLOT_WIDTH - PLOT_RIGHT, bottom = PLOT_HEIGHT - PLOT_BOTTOM;
  const double range = p->high - p->low, tick = range > 4     ? 1
                                                : range > 1.6 ? 0.5
                                                : range > 0.8 ? 0.2
                                                              : 0.1;
  for (double loss = ceil(p->low / tick) * tick; loss <= p->high; loss += tick) {
    const double y = loss_plot_y_(p, loss);
    fprintf(p->file, "<path d=\"M%d %.1fH%.0f\" stroke=\"#ddd\"/>\n", PLOT_LEFT, y, right);
    fprintf(p->file, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.1f</text>\n", PLOT_LEFT - 8,
            y + 4, loss);
  }
  for (int i = 0; i <= 4; i++) {
    const int64_t step = p->steps * i / 4;
    fprintf(p->file, "<text x=\"%.1f\" y=\"%.0f\" text-anchor=\"middle\">%" PRId64 "</text>\n",
            loss_plot_x_(p, step), bottom + 20, step);
  }
  fprintf(p->file, "<path d=\"M%d %dV%.0fH%.0f\" fill=\"none\" stroke=\"#333\"/>\n", PLOT_LEFT,
          PLOT_TOP, bottom, right);
  fprintf(p->file, "<text x=\"%d\" y=\"%.0f\" text-anchor=\"middle\">step</text>\n",
          (PLOT_LEFT + PLOT_WIDTH - PLOT_RIGHT) / 2, bottom + 40);
}

/* Losses of `steps` steps, NaN where there is none. Null, or why the file could not be written. */
static const char *loss_plot_write(const char *path, const float *learned, const float *held_out,
                                   int64_t steps) {
  loss_plot p = {.file = fopen(path, "wb"), .steps = steps, .low = INFINITY, .high = -INFINITY};
  if (!p.file) return strerror(errno);
  for (int64_t i = 0; i < 2 * steps; i++) {
    const double loss = i < steps ? learned[i] : held_out[i - steps];
    if (isfinite(loss) && loss < p.low) p.low = loss;
    if (isfinite(loss) && loss > p.high) p.high = loss;
  }
  if (!(p.low < p.high)) p.high = (p.low = isfinite(p.low) ? p.low - 0.5 : 0) + 1;
  fprintf(
      p.file,
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" "
      "font-size=\"13\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
      PLOT_WIDTH, PLOT_HEIGHT);
  loss_plot_axes_(&p);
  loss_plot_line_(&p, learned, 0, "stroke=\"#b9cdea\" stroke-width=\"0.7\"");
  loss_plot_line_(&p, learned, 0.95, "stroke=\"#1f5fb4\" stroke-width=\"2\"");
  loss_plot_line_(&p, held_out, 0, "stroke=\"#c8501e\" stroke-width=\"2\"");
  fprintf(p.file,
          "<text x=\"%d\" y=\"24\">loss, nats a token: <tspan fill=\"#1f5fb4\">learned "
          "from</tspan>, <tspan "
          "fill=\"#c8501e\">held out</tspan></text>\n</svg>\n",
          PLOT_LEFT);
  const int failed = ferror(p.file);
  return fclose(p.file) || failed ? "the file could not be written in full" : NULL;
}

#endif
