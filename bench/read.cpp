/* read.cpp owns the entries of plain reading, the bandwidth to hold others against. */

#include "case.h"

namespace {

class ReadCase : public Case {
 public:
  ReadCase(int level, int threads) : Case(ATTN_ISA_AUTO), bytes_(peak_level_bytes(level, threads)) {
    rate_ = peak_read_bandwidth(bytes_, threads);
    contest.add("probe", 1, [] { return true; });
  }

  void counters(benchmark::State &state) override {
    state.counters["GB_per_second"] = rate_;
    state.counters["bytes_per_thread"] = (double)bytes_;
  }

 private:
  size_t bytes_;
  double rate_;
};

}  // namespace

void register_read() {
  static const char *const levels[] = {"L2", "L3", "DRAM"};
  for (int level = 2; level <= 4; level++)
    for (int threads = 1; threads <= clock_cores(); threads *= 2)
      case_register(
          std::string("read/") + levels[level - 2] + "/threads:" + std::to_string(threads),
          [=] { return std::make_unique<ReadCase>(level, threads); });
}
