/* bench.cpp owns the benchmark program: one tier a process, named by --isa=. Peers and peak probes
 * run in the same process, in turn with ours. --full takes every entry, --sparse all of sparse
 * attention and of the terms of the score alone, --threads sets each call by several workers against the
 * same by one. The library's own flags work:
 * --benchmark_filter, --benchmark_min_time, --benchmark_out. */
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "case.h"
#include "peers.h"
#include "threads.h"

namespace {

/* Fewer turns than this say little, however long one lasts. */
constexpr int kMinRounds = 4;

bool threads; /* how calls scale is measured, not their speed */
std::string current_name;
std::unique_ptr<Case> current;

/* How far the turns of ours lie apart, as shares of the best one, and what else the machine did. */
void noise(benchmark::UserCounters &c, const Contest &contest) {
  const Contender &us = contest[0];
  if (us.rates.empty()) return;
  double load = 0;
  c["median_share"] = us.median() / us.best();
  c["worst_share"] = us.worst() / us.best();
  c["spread_share"] = (us.quantile(0.75) - us.quantile(0.25)) / us.best();
  c["core_share"] = contest.core_share();
  if (getloadavg(&load, 1) == 1) c["load"] = load;
}

void run(benchmark::State &state, const std::string &name, const CaseMaker &make) {
  if (current_name != name) {
    current.reset();
    current = make();
    current_name = name;
  }
  for (auto _ : state) {
    double t = current->failure.empty() ? current->contest.round() : -1;
    if (t < 0) {
      state.SkipWithError(current->failure.c_str());
      return;
    }
    state.SetIterationTime(t);
  }
  while (current->contest.rounds() < kMinRounds && current->failure.empty())
    current->contest.round();
  if (!current->failure.empty()) {
    state.SkipWithError(current->failure.c_str());
    return;
  }
  current->counters(state);
  noise(state.counters, current->contest);
}

/* Progress on the terminal, one line an entry; the tables are drawn from the JSON afterwards. */
class Progress : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context &) override { return true; }
  void ReportRuns(const std::vector<Run> &runs) override {
    for (const Run &r : runs) {
      std::string name = r.run_name.function_name;
      if (r.error_occurred) {
        std::printf("  %-58s FAILED: %s\n", name.c_str(), r.error_message.c_str());
        failed = true;
      } else {
        std::printf("  %-58s", name.c_str());
        for (const char *key :
             {"GFLOPS", "percent", "GB_per_second", "ulp", "base_ratio", "openblas_ratio",
              "build_per_forward", "alone_ms", "pool_2", "pool_2_best", "openmp_2", "others",
              "loops", "serial_percent", "wait_percent", "more_percent"}) {
          auto it = r.counters.find(key);
          if (it != r.counters.end()) std::printf(" %s %.4g", key, it->second.value);
        }
        std::printf("\n");
      }
      std::fflush(stdout);
    }
  }
  bool failed = false;
};

/* What a call wants to work in, however long the sequences are. Only addresses are looked at. */
void report_workspace() {
  for (int64_t t : {1024, 65536}) {
    size_t bytes = (size_t)t * 128 * 4;
    std::vector<char> memory(4 * bytes);
    auto view = [&](size_t i) {
      return attn_bhtd(memory.data() + i * bytes, ATTN_F32, 1, 1, t, 128);
    };
    for (int workers : {1, 2}) {
      attn_ctx ctx = {};
      ctx.workers = workers;
      ctx.parallel_for = [](void *, int64_t count, attn_task_fn task, void *arg) {
        for (int64_t i = 0; i < count; i++) task(arg, i);
      };
      size_t wanted = attn_sdpa_workspace(view(0), view(1), view(2), view(3), nullptr, &ctx);
      std::string key =
          "workspace_T" + std::to_string(t) + "_d128_workers" + std::to_string(workers);
      std::printf("%s: %zu bytes\n", key.c_str(), wanted);
      benchmark::AddCustomContext(key, std::to_string(wanted));
    }
  }
}

/* The limits of one core that a roofline is drawn with. */
void report_roofs(attn_isa isa) {
  static const char *const levels[] = {"L2", "L3", "DRAM"};
  benchmark::AddCustomContext("peak_GFLOPS", std::to_string(peak_of(isa)->max));
  for (int level = 2; level <= 4; level++)
    benchmark::AddCustomContext(std::string(levels[level - 2]) + "_GB_per_second",
                                std::to_string(peak_read_bandwidth(peak_level_bytes(level, 1), 1)));
}

/* What the processor is called: x86 says it in words, ARM by numbers of implementer and part. */
std::string model_name() {
  std::string model = "unknown";
  if (FILE *f = std::fopen("/proc/cpuinfo", "r")) {
    char line[256];
    std::string implementer;
    while (std::fgets(line, sizeof line, f)) {
      std::string value = std::strchr(line, ':') ? std::strchr(line, ':') + 2 : "\n";
      value.pop_back();
      if (!std::strncmp(line, "CPU implementer", 15)) implementer = value;
      if (!std::strncmp(line, "CPU part", 8)) model = "ARM " + implementer + "/" + value;
      if (!std::strncmp(line, "model name", 10)) model = value;
      if (model != "unknown") break;
    }
    std::fclose(f);
  }
  return model;
}

}  // namespace

void case_register(const std::string &name, CaseMaker make, double seconds) {
  auto *b = benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State &state) {
    run(state, name, threads ? [=] { return scaling_case(name, make()); } : make);
  });
  b->UseManualTime()->Unit(benchmark::kMillisecond);
  if (seconds > 0) b->MinTime(seconds);
}

std::string case_check(attn_status status, const attn_ctx &ctx, attn_isa isa) {
  if (status != ATTN_OK) return ctx.reason ? ctx.reason : attn_status_string(status);
  if (ctx.report.isa != isa) return std::string("ran on ") + attn_isa_name(ctx.report.isa);
  return "";
}

int main(int argc, char **argv) {
  attn_isa isa = attn_isa_best();
  bool full = false, sparse = false;
  int kept = 1;
  for (int a = 1; a < argc; a++) {
    if (!std::strncmp(argv[a], "--isa=", 6)) {
      int i = 1;
      while (i < ATTN_ISA_COUNT && std::strcmp(argv[a] + 6, attn_isa_name((attn_isa)i)) != 0) i++;
      if (i == ATTN_ISA_COUNT) {
        std::printf("%s: no such tier\n", argv[a]);
        return 1;
      }
      isa = (attn_isa)i;
    } else if (!std::strcmp(argv[a], "--full")) {
      full = true;
    } else if (!std::strcmp(argv[a], "--threads")) {
      threads = true;
    } else if (!std::strcmp(argv[a], "--sparse")) {
      sparse = full = true;
    } else {
      argv[kept++] = argv[a];
    }
  }
  argc = kept;
  if (attn_isa_status(isa) != ATTN_ISA_OK) {
    std::printf("%s: not run, %s\n", attn_isa_name(isa), attn_isa_why(isa));
    return 0;
  }

  if (threads)
    threads_open();
  else
    clock_pin(clock_cores() - 1);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::AddCustomContext("tier", attn_isa_name(isa));
  benchmark::AddCustomContext("cpu", model_name());
  benchmark::AddCustomContext("compiler", __VERSION__);
  benchmark::AddCustomContext("openblas_core", composite_core());
  std::printf("%s on %s; OpenBLAS kernels: %s\n", attn_isa_name(isa), model_name().c_str(),
              composite_core());
  if (!sparse && !threads) report_workspace();
  for (int i = 0; i < 100; i++) peak_probe(isa);
  if (!threads) report_roofs(isa);

  const Selection selection = {isa, full, sparse, threads};
  if (threads)
    register_limits(selection);
  else if (!sparse)
    register_read();
  for (auto *entries : {register_exp,
                        register_gemm,
                        register_norm,
                        register_position,
                        register_quantize,
                        register_sequence,
                        register_sdpa,
                        register_relu,
                        register_reshaped,
                        register_cache,
                        register_pattern,
                        register_edges,
                        register_multihead,
                        register_sparse,
                        register_content,
                        register_linear,
                        register_compression,
                        register_lowrank,
                        register_priors,
                        register_maps,
                        register_heads,
                        register_memory,
                        register_depth,
                        register_blocks,
                        register_mixers,
                        register_selection,
                        register_latent,
                        register_training,
                        register_training_loss,
                        register_training_dense,
                        register_selection_prefill,
                        register_selection_evict})
    entries(selection);
  Progress progress;
  benchmark::RunSpecifiedBenchmarks(&progress);
  current.reset();
  for (int i = 0; i < 100; i++) peak_probe(isa);
  peak_print(isa);
  if (threads) threads_summary();
  threads_close();
  benchmark::Shutdown();
  return progress.failed;
}
