/* ring_attention.c owns the example of one sequence over many machines: every MPI rank holds a share
 * of the tokens; blocks of keys and values travel round the ring of ranks while the block at hand is
 * attended to, and partial results are merged by their LSE. No rank ever holds the whole sequence.
 *
 *   mpicc -O2 -I. -o ring_attention docs/examples/ring_attention.c -lm
 *   mpirun -n 4 ./ring_attention [OPTIONS] [TOKENS [HEADS [KV_HEADS [DIM]]]]
 *
 *   --full      every token sees all; without it only those before it and itself
 *   --striped   rank r holds tokens r, r + P, ... of P ranks (Brandon et al. 2023, arXiv 2311.09431)
 *   --plain     rank r holds one run of tokens: simple, and up to half the time idle when causal
 *               (by default zigzag: runs r and 2P-1-r of 2P, so that causal work is level)
 *   --check     compare with one attn_sdpa on rank 0; exit status 1 beyond rounding
 *   --spoil     change one number on its way, which --check has to find
 *
 * Ring attention: Liu et al. 2023, arXiv 2310.01889. */
#define ATTN_IMPLEMENTATION
#include "attn.h"

#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Differences that rounding explains: of an output, in units of the largest |v|, and of an LSE. */
#define BOUND 1e-6

typedef enum layout { ZIGZAG, STRIPED, PLAIN } layout;

typedef struct problem {
  int64_t tokens, heads, kv_heads, dim;
  layout layout;
  int causal, check, spoil;
  int ranks, rank;
} problem;

/* The tokens first, first + step, ... that lie together, from row `row` of a rank's share on. */
typedef struct part {
  int64_t first, step, rows, row;
} part;

/* What one rank holds. */
typedef struct share {
  part part[2];
  int64_t rows;
} share;

static share share_of(const problem *p, int rank) {
  share s = {{{0, 1, 0, 0}, {0, 1, 0, 0}}, 0};
  if (p->layout == STRIPED) {
    s.part[0].first = rank, s.part[0].step = p->ranks;
    s.part[0].rows = (p->tokens - rank + p->ranks - 1) / p->ranks;
  }
  for (int n = 0; n < 2 && p->layout != STRIPED; n++) {
    /* 2P runs whose lengths differ by at most one token */
    int64_t runs = 2 * (int64_t)p->ranks;
    int64_t run = p->layout == PLAIN ? 2 * rank + n : n == 0 ? rank : runs - 1 - rank;
    s.part[n].first = p->tokens * run / runs;
    s.part[n].rows = p->tokens * (run + 1) / runs - s.part[n].first;
  }
  s.part[1].row = s.part[0].rows;
  s.rows = s.part[0].rows + s.part[1].rows;
  return s;
}

static void stop(const char *what) {
  fprintf(stderr, "ring_attention: %s\n", what);
  MPI_Abort(MPI_COMM_WORLD, 2);
  exit(2);
}

static float *floats(int64_t n) {
  float *x = malloc((size_t)(n > 0 ? n : 1) * sizeof *x);
  if (!x) stop("no memory");
  return x;
}

/* Column c of token t's q (kind 0), k (1) or v (2): -1..1, the same on every rank. */
static float number(int kind, int64_t t, int64_t c) {
  uint64_t x = ((uint64_t)t * 4 + (uint64_t)kind) * 0x9E3779B97F4A7C15u + (uint64_t)c;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return (float)((double)(x >> 40) / 8388608.0 - 1.0);
}

/* Queries are [row][head][dim]. A row of a block is a token's keys, then its values, so that any run
 * of tokens is one piece of memory and one message. */
static void fill_queries(const problem *p, const share *s, float *q) {
  for (int n = 0; n < 2; n++)
    for (int64_t i = 0; i < s->part[n].rows; i++)
      for (int64_t c = 0; c < p->heads * p->dim; c++)
        *q++ = number(0, s->part[n].first + i * s->part[n].step, c);
}
static void fill_block(const problem *p, const share *s, float *kv) {
  for (int n = 0; n < 2; n++)
    for (int64_t i = 0; i < s->part[n].rows; i++)
      for (int kind = 1; kind < 3; kind++)
        for (int64_t c = 0; c < p->kv_heads * p->dim; c++)
          *kv++ = number(kind, s->part[n].first + i * s->part[n].step, c);
}

/* Views of one part. */
static attn_tensor rows_of(const float *x, const part *a, int64_t heads, int64_t dim) {
  return attn_bthd(x + a->row * heads * dim, ATTN_F32, 1, a->rows, heads, dim);
}
static attn_tensor keys_of(const problem *p, const float *kv, const part *a, int values) {
  int64_t half = p->kv_heads * p->dim;
  attn_tensor t =
      attn_bthd(kv + a->row * 2 * half + values * half, ATTN_F32, 1, a->rows, p->kv_heads, p->dim);
  t.stride_len = 2 * half;
  return t;
}

/* One rank's work. */
typedef struct worker {
  const problem *p;
  share own;
  float *q, *o, *lse;       /* this rank's queries and results */
  float *part_o, *part_lse; /* of one block */
  attn_ctx ctx;             /* set parallel_for and workers to use the cores of this machine */
  double pairs;             /* scores computed */
  double seconds, waited;   /* attending; for the ring */
  MPI_Request request[2];   /* the block that leaves and the one that comes */
} worker;

static void check(const worker *w, attn_status status) {
  if (status != ATTN_OK) stop(w->ctx.reason ? w->ctx.reason : attn_status_string(status));
}

/* Adds the keys of `held` to the results of this rank's queries: one call for each pair of parts
 * that causality allows, whatever the layout. Token first + i step of the queries sees token
 * first' + j step of the keys when j <= i + (first - first') / step, rounded down. */
static void attend(worker *w, const float *kv, const share *held) {
  const problem *p = w->p;
  double start = MPI_Wtime();
  for (int m = 0; m < 2; m++) {
    for (int n = 0; n < 2; n++) {
      const part *queries = &w->own.part[m], *keys = &held->part[n];
      int64_t ahead = queries->first - keys->first, step = keys->step;
      attn_sdpa_params params = {0};
      if (queries->rows == 0 || keys->rows == 0) continue;
      if (p->causal) {
        params.causal = params.has_q_off = 1;
        params.q_off = ahead >= 0 ? ahead / step : -((step - 1 - ahead) / step);
        if (queries->rows - 1 + params.q_off < 0) continue; /* all keys come later */
      }
      attn_tensor q = rows_of(w->q, queries, p->heads, p->dim);
      attn_tensor o = rows_of(w->o, queries, p->heads, p->dim);
      attn_tensor lse = rows_of(w->lse, queries, p->heads, 1);
      attn_tensor part_o = rows_of(w->part_o, queries, p->heads, p->dim);
      params.lse = rows_of(w->part_lse, queries, p->heads, 1);
      check(w, attn_sdpa(part_o, q, keys_of(p, kv, keys, 0), keys_of(p, kv, keys, 1), &params,
                         &w->ctx));
      w->pairs += (double)w->ctx.report.pairs;
      check(w, attn_merge(o, lse, o, lse, part_o, params.lse, &w->ctx));
      /* many an MPI moves data only while it is called */
      int done;
      MPI_Testall(2, w->request, &done, MPI_STATUSES_IGNORE);
    }
  }
  w->seconds += MPI_Wtime() - start;
}

/* P steps: at step s this rank attends to the block of rank - s, while that block goes on to rank + 1
 * and the next one comes from rank - 1 into the other buffer. */
static void ring(worker *w, float *block[2], MPI_Datatype row) {
  const problem *p = w->p;
  const int next = (p->rank + 1) % p->ranks, last = (p->rank + p->ranks - 1) % p->ranks;
  for (int64_t i = 0; i < w->own.rows * p->heads; i++) w->lse[i] = -INFINITY; /* no key so far */
  for (int s = 0; s < p->ranks; s++) {
    share held = share_of(p, (p->rank - s + p->ranks) % p->ranks);
    w->request[0] = w->request[1] = MPI_REQUEST_NULL;
    if (s + 1 < p->ranks) {
      share coming = share_of(p, (p->rank - s - 1 + p->ranks) % p->ranks);
      MPI_Irecv(block[(s + 1) % 2], (int)coming.rows, row, last, s, MPI_COMM_WORLD, &w->request[0]);
      MPI_Isend(block[s % 2], (int)held.rows, row, next, s, MPI_COMM_WORLD, &w->request[1]);
    }
    attend(w, block[s % 2], &held);
    double start = MPI_Wtime();
    MPI_Waitall(2, w->request, MPI_STATUSES_IGNORE);
    w->waited += MPI_Wtime() - start;
    if (p->spoil && s == 0 && p->rank == 0) block[1][0] += 1.0f;
  }
}

/* ---- the check -------------------------------------------------------------------------------*/

/* The largest difference of a share from the rows of one call on the whole; NaN counts as one. */
static double differs(const share *s, const float *got, const float *want, int64_t width,
                      int relative) {
  double most = 0;
  for (int n = 0; n < 2; n++)
    for (int64_t i = 0; i < s->part[n].rows; i++)
      for (int64_t c = 0; c < width; c++) {
        double x = (double)*got++;
        double y = (double)want[(s->part[n].first + i * s->part[n].step) * width + c];
        double d = fabs(x - y) / (relative ? 1 + fabs(y) : 1);
        if (!(d <= most)) most = d == d ? d : HUGE_VAL;
      }
  return most;
}

/* On rank 0: everything in one attn_sdpa, against the shares of all ranks. 1 = they agree. */
static int agree(const worker *w) {
  const problem *p = w->p;
  const int64_t width = p->heads * p->dim;
  problem one = *p;
  one.ranks = 1, one.rank = 0, one.layout = PLAIN;
  const share all = share_of(&one, 0);
  const part whole = {0, 1, p->tokens, 0};
  float *q = floats(p->tokens * width), *o = floats(p->tokens * width);
  float *kv = floats(p->tokens * 2 * p->kv_heads * p->dim), *lse = floats(p->tokens * p->heads);
  attn_sdpa_params params = {0};
  attn_ctx ctx = {0};
  fill_queries(&one, &all, q);
  fill_block(&one, &all, kv);
  params.causal = p->causal;
  params.lse = rows_of(lse, &whole, p->heads, 1);
  check(w, attn_sdpa(rows_of(o, &whole, p->heads, p->dim), rows_of(q, &whole, p->heads, p->dim),
                     keys_of(p, kv, &whole, 0), keys_of(p, kv, &whole, 1), &params, &ctx));
  double o_most = 0, lse_most = 0;
  for (int r = 0; r < p->ranks; r++) {
    const share s = share_of(p, r);
    float *got = r ? floats(s.rows * width) : w->o, *sum = r ? floats(s.rows * p->heads) : w->lse;
    if (r) {
      MPI_Recv(got, (int)(s.rows * width), MPI_FLOAT, r, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      MPI_Recv(sum, (int)(s.rows * p->heads), MPI_FLOAT, r, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    o_most = fmax(o_most, differs(&s, got, o, width, 0));
    lse_most = fmax(lse_most, differs(&s, sum, lse, p->heads, 1));
    if (r) free(got), free(sum);
  }
  free(q), free(o), free(kv), free(lse);
  int ok = o_most <= BOUND && lse_most <= BOUND;
  printf("against one attn_sdpa: O within %.1e, LSE within %.1e: %s\n", o_most, lse_most,
         ok ? "agrees" : "DIFFERS");
  return ok;
}

static int checked(const worker *w) {
  const problem *p = w->p;
  int ok = 1;
  if (p->rank == 0) {
    ok = agree(w);
  } else {
    MPI_Send(w->o, (int)(w->own.rows * p->heads * p->dim), MPI_FLOAT, 0, 0, MPI_COMM_WORLD);
    MPI_Send(w->lse, (int)(w->own.rows * p->heads), MPI_FLOAT, 0, 1, MPI_COMM_WORLD);
  }
  MPI_Bcast(&ok, 1, MPI_INT, 0, MPI_COMM_WORLD);
  return ok;
}

/* ---- the program -----------------------------------------------------------------------------*/

static void report(const worker *w, double seconds) {
  const problem *p = w->p;
  double mine[4] = {(double)w->own.rows, w->pairs, 1e3 * w->seconds, 1e3 * w->waited};
  double *all = malloc((size_t)p->ranks * sizeof mine), most = 0, sum = 0;
  if (!all) stop("no memory");
  MPI_Gather(mine, 4, MPI_DOUBLE, all, 4, MPI_DOUBLE, 0, MPI_COMM_WORLD);
  if (p->rank == 0) {
    static const char *const names[] = {"zigzag", "striped", "plain"};
    printf("%d ranks, %.0f tokens, %.0f heads over %.0f, d %.0f, %s, %s, %s tier\n", p->ranks,
           (double)p->tokens, (double)p->heads, (double)p->kv_heads, (double)p->dim,
           p->causal ? "causal" : "full", names[p->layout], attn_isa_name(w->ctx.report.isa));
    printf("rank   tokens   million pairs   attends ms   waits ms\n");
    for (int r = 0; r < p->ranks; r++) {
      const double *x = all + (ptrdiff_t)4 * r;
      printf("%4d %8.0f %15.2f %12.2f %10.2f\n", r, x[0], 1e-6 * x[1], x[2], x[3]);
      most = fmax(most, x[1]), sum += x[1];
    }
    double t = (double)p->tokens,
           allowed = (double)p->heads * (p->causal ? t * (t + 1) / 2 : t * t);
    printf(
        "%.2f ms; busiest rank %.3f x the mean; %.2f x the allowed pairs computed; "
        "%.2f MB sent a rank\n",
        1e3 * seconds, most * p->ranks / sum, sum / allowed,
        8e-6 * (p->ranks - 1) * t / p->ranks * (double)(p->kv_heads * p->dim));
  }
  free(all);
}

/* 0 = the arguments make no sense. */
static int read_arguments(problem *p, int argc, char **argv) {
  int64_t *number_of[] = {&p->tokens, &p->heads, &p->kv_heads, &p->dim};
  int numbers = 0;
  for (int n = 1; n < argc; n++) {
    char *end;
    if (strcmp(argv[n], "--full") == 0) {
      p->causal = 0;
    } else if (strcmp(argv[n], "--striped") == 0) {
      p->layout = STRIPED;
    } else if (strcmp(argv[n], "--plain") == 0) {
      p->layout = PLAIN;
    } else if (strcmp(argv[n], "--check") == 0) {
      p->check = 1;
    } else if (strcmp(argv[n], "--spoil") == 0) {
      p->spoil = 1;
    } else {
      if (numbers == 4) return 0;
      *number_of[numbers++] = strtol(argv[n], &end, 10);
      if (end == argv[n] || *end) return 0;
    }
  }
  if (numbers == 2) p->kv_heads = p->heads;
  /* so that the counts of all messages fit an int */
  for (int n = 0; n < 4; n++)
    if (*number_of[n] < 1 || *number_of[n] > 1 << 24) return 0;
  return p->heads % p->kv_heads == 0 && p->heads * p->dim <= 1 << 20 &&
         p->tokens / p->ranks < INT32_MAX / (p->heads * p->dim) - 2;
}

int main(int argc, char **argv) {
  problem p = {4096, 8, 2, 64, ZIGZAG, 1, 0, 0, 1, 0};
  MPI_Init(&argc, &argv);
  MPI_Comm_size(MPI_COMM_WORLD, &p.ranks);
  MPI_Comm_rank(MPI_COMM_WORLD, &p.rank);
  if (!read_arguments(&p, argc, argv)) {
    if (p.rank == 0)
      fprintf(stderr,
              "usage: ring_attention [--full] [--striped | --plain] [--check] [--spoil] "
              "[TOKENS [HEADS [KV_HEADS [DIM]]]]\n");
    MPI_Finalize();
    return 2;
  }

  worker w;
  memset(&w, 0, sizeof w);
  w.p = &p, w.own = share_of(&p, p.rank);
  const int64_t rows = p.tokens / p.ranks + 2; /* no share has more */
  const int64_t width = p.heads * p.dim, kv_width = 2 * p.kv_heads * p.dim;
  float *block[2] = {floats(rows * kv_width), floats(rows * kv_width)};
  w.q = floats(rows * width), w.o = floats(rows * width), w.part_o = floats(rows * width);
  w.lse = floats(rows * p.heads), w.part_lse = floats(rows * p.heads);
  fill_queries(&p, &w.own, w.q);
  fill_block(&p, &w.own, block[0]);
  MPI_Datatype row;
  MPI_Type_contiguous((int)kv_width, MPI_FLOAT, &row);
  MPI_Type_commit(&row);

  MPI_Barrier(MPI_COMM_WORLD);
  double start = MPI_Wtime();
  ring(&w, block, row);
  MPI_Barrier(MPI_COMM_WORLD);
  report(&w, MPI_Wtime() - start);
  int ok = !p.check || checked(&w);

  MPI_Type_free(&row);
  free(block[0]), free(block[1]), free(w.q), free(w.o), free(w.part_o), free(w.lse);
  free(w.part_lse);
  MPI_Finalize();
  return ok ? 0 : 1;
}
