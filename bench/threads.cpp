/* threads.cpp owns how calls scale with workers. */

#include "threads.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>

#include "peak.h"
#include "docs/examples/pool.h"

namespace {

pool team;
bool open_;

/* Seconds of all cores without work since the machine began; negative where nobody says. */
double idle() {
  double ticks = -1, user, nice, system, rest;
  if (FILE *f = std::fopen("/proc/stat", "r")) {
    if (std::fscanf(f, "cpu %lf %lf %lf %lf", &user, &nice, &system, &rest) == 4) ticks = rest;
    std::fclose(f);
  }
  return ticks < 0 ? ticks : ticks / (double)sysconf(_SC_CLK_TCK);
}

double own() {
  rusage r;
  getrusage(RUSAGE_SELF, &r);
  return (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) +
         1e-6 * (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec);
}

/* What else the machine did from here on. */
struct Others {
  double clock = clock_now(), busy = own(), rest = idle();

  /* share of all cores that was neither idle nor ours; negative where nobody says */
  double share() const {
    const double all = (clock_now() - clock) * sysconf(_SC_NPROCESSORS_ONLN);
    if (rest < 0 || all <= 0) return -1;
    return std::max(0.0, 1 - (own() - busy + idle() - rest) / all);
  }
};

/* Where the seconds of a call go: in loops, and there at work. */
struct Trace {
  double inside, busy;
  int64_t loops;
};
Trace trace;

struct TracedLoop {
  attn_task_fn task;
  void *arg;
  double seconds[2];
};

void traced_task(void *to, int64_t index) {
  TracedLoop *loop = static_cast<TracedLoop *>(to);
  const double t = clock_now();
  loop->task(loop->arg, index);
  loop->seconds[index & 1] += clock_now() - t;
}

void one_thread(void *, int64_t count, attn_task_fn task, void *arg) {
  for (int64_t i = 0; i < count; i++) task(arg, i);
}

/* Loops of two workers by the pool, or one after the other. */
template <attn_parallel_fn run>
void traced_run(void *user, int64_t count, attn_task_fn task, void *arg) {
  TracedLoop loop = {task, arg, {0, 0}};
  const double start = clock_now();
  run(user, count, traced_task, &loop);
  trace.inside += clock_now() - start;
  trace.busy += loop.seconds[0] + loop.seconds[1];
  trace.loops++;
}

struct Row {
  std::string name;
  double speedup;
};
std::vector<Row> rows;
const Others run;

class ScalingCase : public Case {
 public:
  ScalingCase(const std::string &name, std::unique_ptr<Case> entry)
      : Case(entry->contest.isa()), name_(name), entry_(std::move(entry)) {
    failure = entry_->failure;
    const int cores = clock_cores();
    add("alone", 1, nullptr);
    add("pool_2", 2, pool_run);
    if (cores > 2) add("pool_" + std::to_string(cores), cores, pool_run);
#ifdef _OPENMP
    add("openmp_" + std::to_string(cores), cores, attn_parallel_openmp);
    /* its threads go on looking for work for some milliseconds, on cores that others need */
    contest.add("rest", 1, [] { return usleep(8000) == 0; }).wall = true;
#endif
  }

  void counters(benchmark::State &state) override {
    auto &c = state.counters;
    const Contender &alone = *contest.find("alone"), &two = *contest.find("pool_2");
    c["alone_ms"] = 1e3 / alone.median();
    for (size_t n = 1; contest[n].name != "rest"; n++) {
      c[contest[n].name] = contest[n].median() / alone.median();
      c[contest[n].name + "_best"] = contest[n].best() / alone.best();
      if (&contest[n] == contest.last()) break;
    }
    c["rounds"] = (double)alone.rates.size();
    c["others"] = others_.share();
    explain(c, 1 / alone.median());
    if (rows.empty() || rows.back().name != name_) rows.push_back({name_, 0});
    rows.back().speedup = two.median() / alone.median();
  }

 private:
  /* Seconds of a call by two workers; 0: it failed. */
  double traced(attn_parallel_fn run, int calls) {
    const double start = clock_now();
    trace = Trace();
    for (int n = 0; n < calls; n++)
      if (!entry_->call_with(2, run)) return 0;
    return clock_now() - start;
  }

  /* Where the rest of a speed-up goes. serial: share of one thread's seconds outside of loops. Of two threads', wait:
   * waiting in loops, for a thread to wake up or for the last item; more: how much longer the work takes than by one,
   * since parts are done twice or memory is the limit. */
  void explain(benchmark::UserCounters &c, double alone) {
    const int calls = std::max(1, (int)(0.01 / alone));
    double seconds = traced(traced_run<one_thread>, calls);
    const double once = trace.busy, serial = seconds - trace.inside;
    c["loops"] = (double)trace.loops / calls;
    c["serial_percent"] = 100 * serial / seconds;
    traced(traced_run<pool_run>, calls); /* wakes the pool up */
    seconds = traced(traced_run<pool_run>, calls);
    c["wait_percent"] = 50 * (2 * trace.inside - trace.busy) / seconds;
    c["more_percent"] = once > 0 ? 100 * (trace.busy / once - 1) : 0;
  }

  void add(const std::string &name, int workers, attn_parallel_fn run) {
    contest
        .add(name, 1,
             [this, workers, run] {
               if (entry_->call_with(workers, run)) return true;
               failure = entry_->failure.empty() ? "failed" : entry_->failure;
               return false;
             })
        .wall = true;
  }

  std::string name_;
  std::unique_ptr<Case> entry_;
  Others others_;
};

/* Items that share nothing: their speed-up is the most that this machine has for anybody. */
class LimitCase : public Case {
 public:
  /* bytes that each item reads; 0: multiply-adds on registers */
  LimitCase(attn_isa isa, size_t bytes, bool own) : Case(isa), isa_(isa), bytes_(bytes), own_(own) {
    if (bytes) data_.resize(bytes / sizeof(float) * (own ? (size_t)clock_cores() : kItems));
    contest.add("ours", 1, [this] {
      next_ = 0;
      if (ctx_.workers > 1)
        ctx_.parallel_for(ctx_.parallel_user, ctx_.workers, task, this);
      else
        task(this, 0);
      return true;
    });
  }
  void counters(benchmark::State &) override {}

 private:
  static constexpr int64_t kItems = 64;

  static void task(void *arg, int64_t worker) {
    LimitCase *c = static_cast<LimitCase *>(arg);
    const size_t each = c->bytes_ / sizeof(float);
    for (int64_t i; (i = __atomic_fetch_add(&c->next_, 1, __ATOMIC_RELAXED)) < kItems;) {
      if (!c->bytes_)
        peak_steps(c->isa_);
      else
        peak_read(c->data_.data() + (size_t)(c->own_ ? worker : i) * each, c->bytes_);
    }
  }

  attn_isa isa_;
  size_t bytes_;
  bool own_; /* each worker has its buffer, which stays in its cache */
  int64_t next_ = 0;
  Floats data_;
};

}  // namespace

attn_ctx case_ctx(attn_isa isa) {
  attn_ctx ctx = {};
  ctx.isa = isa;
  if (open_) {
    ctx.workers = clock_cores() > 2 ? clock_cores() : 2;
    ctx.parallel_for = pool_run;
    ctx.parallel_user = &team;
  }
  return ctx;
}

void threads_open() {
  open_ = true;
  pool_open(&team, clock_cores() > 2 ? clock_cores() : 2);
}

void threads_close() {
  if (open_) pool_close(&team);
}

std::unique_ptr<Case> scaling_case(const std::string &name, std::unique_ptr<Case> entry) {
  return std::make_unique<ScalingCase>(name, std::move(entry));
}

void register_limits(const Selection &s) {
  const attn_isa isa = s.isa;
  auto add = [isa](const char *name, size_t bytes, bool own) {
    case_register(std::string("limit/") + name,
                  [=] { return std::make_unique<LimitCase>(isa, bytes, own); });
  };
  add("multiply_adds", 0, true);
  add("read/L2", peak_level_bytes(2, 1) / 4096 * 4096, true);
  add("read/DRAM", peak_level_bytes(4, 1) / 64 / 4096 * 4096, false);
}

void threads_summary() {
  int below = 0;
  for (const Row &r : rows) below += r.speedup < kScalingGoal;
  std::printf("\n%zu entries, %d with two workers of the pool below %.2f (median):\n", rows.size(),
              below, kScalingGoal);
  for (const Row &r : rows)
    if (r.speedup < kScalingGoal) std::printf("  %-70s %5.2f\n", r.name.c_str(), r.speedup);
  double load[3] = {};
  if (getloadavg(load, 3) >= 1)
    std::printf(
        "load average %.2f (1 minute), %.2f (5), on %d cores; others used %.0f %% of them\n",
        load[0], load[1], clock_cores(), 100 * run.share());
}
