/* kernels/unroll.h owns the loops of micro-kernels: macros over named variables with literal counts.
 * Compilers leave arrays in memory at -O2, and a count that is only a constant argument makes them
 * read all the rows that it then drops, without optimisation even compile them. */

/* f for rows 0, 1, .. of a micro-kernel; what follows is handed on */
#define ATTN_ROWS_1_(f, ...) f(0, __VA_ARGS__)
#define ATTN_ROWS_2_(f, ...) ATTN_ROWS_1_(f, __VA_ARGS__) f(1, __VA_ARGS__)
#define ATTN_ROWS_4_(f, ...) ATTN_ROWS_2_(f, __VA_ARGS__) f(2, __VA_ARGS__) f(3, __VA_ARGS__)
#define ATTN_ROWS_5_(f, ...) ATTN_ROWS_4_(f, __VA_ARGS__) f(4, __VA_ARGS__)
#define ATTN_ROWS_6_(f, ...) ATTN_ROWS_5_(f, __VA_ARGS__) f(5, __VA_ARGS__)
#define ATTN_ROWS_8_(f, ...) ATTN_ROWS_6_(f, __VA_ARGS__) f(6, __VA_ARGS__) f(7, __VA_ARGS__)
#define ATTN_ROWS_12_(f, ...)  \
  ATTN_ROWS_8_(f, __VA_ARGS__) \
  f(8, __VA_ARGS__) f(9, __VA_ARGS__) f(10, __VA_ARGS__) f(11, __VA_ARGS__)

/* f for the vectors of a row: (row, vector) */
#define ATTN_VECS_1_(f, r) f(r, 0)
#define ATTN_VECS_2_(f, r) f(r, 0) f(r, 1)
#define ATTN_VECS_3_(f, r) f(r, 0) f(r, 1) f(r, 2)
#define ATTN_VECS_4_(f, r) f(r, 0) f(r, 1) f(r, 2) f(r, 3)

/* The micro-kernels of a tier, make(rows, vectors): as many rows as registers hold, and what is left over
 * by 4, 2 and 1. A tile has 1 to 4 vectors of lanes where one vector is a group, else the vectors of one
 * group; one vector alone takes more rows, since fewer than 8 sums wait for each other (sdpa T:16:
 * +7 %). ATTN_MICRO_STEPS_ lists them from the largest down as name(rows, vectors). */
#if ATTN_NG_ > 1
#define ATTN_MICRO_ROWS_(make, rows) make(rows, 1) make(rows, 2) make(rows, 3) make(rows, 4)
#define ATTN_MICRO_STEP_(name, rows)                                     \
  {                                                                      \
    rows, { name(rows, 1), name(rows, 2), name(rows, 3), name(rows, 4) } \
  }
#define ATTN_MICRO_WIDE_(make) make(12, 1) make(8, 1)
#define ATTN_MICRO_VECS_(ng) ((ng)-1) /* which of a step's kernels, and how often it runs */
#define ATTN_MICRO_RUNS_(ng) 1
#define ATTN_MICRO_WIDE_STEPS_(name) {12, {name(12, 1)}}, {8, {name(8, 1)}},
#else
#if ATTN_W_ == 8
#define ATTN_MICRO_ROWS_(make, rows) make(rows, 2)
#define ATTN_MICRO_STEP_(name, rows) \
  {                                  \
    rows, { name(rows, 2) }          \
  }
#else
#define ATTN_MICRO_ROWS_(make, rows) make(rows, 4)
#define ATTN_MICRO_STEP_(name, rows) \
  {                                  \
    rows, { name(rows, 4) }          \
  }
#endif
#define ATTN_MICRO_WIDE_(make)
#define ATTN_MICRO_VECS_(ng) 0
#define ATTN_MICRO_RUNS_(ng) (ng)
#define ATTN_MICRO_WIDE_STEPS_(name)
#endif
#if ATTN_MR_ == 6
#define ATTN_MICRO_MOST_(make) \
  ATTN_MICRO_ROWS_(make, 6) ATTN_MICRO_ROWS_(make, 4) ATTN_MICRO_ROWS_(make, 2)
#define ATTN_MICRO_MOST_STEPS_(name) \
  ATTN_MICRO_STEP_(name, 6), ATTN_MICRO_STEP_(name, 4), ATTN_MICRO_STEP_(name, 2),
#elif ATTN_MR_ == 5
#define ATTN_MICRO_MOST_(make) ATTN_MICRO_ROWS_(make, 5) ATTN_MICRO_ROWS_(make, 2)
#define ATTN_MICRO_MOST_STEPS_(name) ATTN_MICRO_STEP_(name, 5), ATTN_MICRO_STEP_(name, 2),
#elif ATTN_MR_ == 2
#define ATTN_MICRO_MOST_(make) ATTN_MICRO_ROWS_(make, 2)
#define ATTN_MICRO_MOST_STEPS_(name) ATTN_MICRO_STEP_(name, 2),
#else
#define ATTN_MICRO_MOST_(make)
#define ATTN_MICRO_MOST_STEPS_(name)
#endif
#define ATTN_MICRO_(make) ATTN_MICRO_WIDE_(make) ATTN_MICRO_MOST_(make) ATTN_MICRO_ROWS_(make, 1)
#define ATTN_MICRO_STEPS_(name) \
  ATTN_MICRO_WIDE_STEPS_(name) ATTN_MICRO_MOST_STEPS_(name) ATTN_MICRO_STEP_(name, 1)

/* the step for n rows that are left of one that was at *step, with or without the wide ones */
#define ATTN_MICRO_NEXT_(step, n, ng)                            \
  while ((step)->rows > (n) || ((step)->rows > 6 && (ng) > 1) || \
         ((step)->rows == 12 && (n) > 12 && (n) < 20))           \
  (step)++
