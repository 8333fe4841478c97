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

/* Where the seconds of two workers go: in no loop, waiting in one, working. */
struct Trace {
  double inside = 0, busy = 0;
  int64_t loops = 0;
};
Trace trace;

struct TracedLoop {
  attn_task_fn task;
  void *arg;
  double seconds[2];
};

void traced_run(void *user, int64_t count, attn_task_fn task, void *arg) {
  TracedLoop loop = {task, arg, {0, 0}};
  const double start = clock_now();
  pool_run(
      user, count,
      [](void *to, int64_t index) {
        TracedLoop *l = static_cast<TracedLoop *>(to);
        const double t = clock_now();
        l->task(l->arg, index);
        l->seconds[index & 1] += clock_now() - t;
      },
      &loop);
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
  /* Of the seconds that two workers have: how many lie in parts by one alone, how many in waiting for the other, and
   * how much longer than alone the work takes, since it is done twice or since memory is the limit. */
  void explain(benchmark::UserCounters &c, double alone) {
    const int calls = std::max(1, (int)(0.01 / alone));
    for (int turn = 0; turn < 2; turn++) { /* the first one wakes the pool up */
      const double start = clock_now();
      trace = Trace();
      for (int n = 0; n < calls; n++)
        if (!entry_->call_with(2, traced_run)) return;
      const double all = clock_now() - start, serial = all - trace.inside;
      c["loops"] = (double)trace.loops / calls;
      c["serial_percent"] = 100 * serial / all;
      c["wait_percent"] = 50 * (2 * trace.inside - trace.busy) / all;
      c["more_percent"] = 100 * ((serial + trace.busy) / (alone * calls) - 1);
    }
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
