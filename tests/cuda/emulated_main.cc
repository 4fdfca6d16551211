// Runs the kernel tests on the executor:
//
//   cuda_test [--schedule=forward|reverse|random:SEED|random*N] [--streams=eager|lazy:SEED|lazy*N]
//   [GTEST_FLAG...]
//
// "random*10" runs everything ten times, with seeds 1 to 10. The last line says how much ran.

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cinttypes>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "tests/cuda/executor/control.h"

namespace {

// A mode for each iteration: "random*10" gives "random:1" to "random:10".
class Mode {
 public:
  explicit Mode(std::string text) : text_(std::move(text)) {
    const size_t star = text_.find('*');
    if (star == std::string::npos) return;
    repeats_ = std::atoi(&text_[star + 1]);
    text_.resize(star);
  }
  int repeats() const { return repeats_; }
  std::string At(int iteration) const {
    return repeats_ == 0 ? text_ : text_ + ":" + std::to_string(iteration + 1);
  }

 private:
  std::string text_;
  int repeats_ = 0;
};

class Modes : public testing::EmptyTestEventListener {
 public:
  Modes(Mode schedule, Mode streams)
      : schedule_(std::move(schedule)), streams_(std::move(streams)) {}

  void OnTestIterationStart(const testing::UnitTest&, int iteration) override {
    const std::string schedule = schedule_.At(iteration), streams = streams_.At(iteration);
    if (!executor::SetSchedule(schedule) || !executor::SetStreams(streams)) {
      std::fprintf(stderr, "unknown mode: %s, %s\n", schedule.c_str(), streams.c_str());
      std::exit(2);
    }
    std::printf("schedule %s, streams %s\n", schedule.c_str(), streams.c_str());
  }
  void OnTestEnd(const testing::TestInfo& info) override {
    if (info.result()->Passed()) ++passed_;
  }
  int passed() const { return passed_; }

 private:
  const Mode schedule_, streams_;
  int passed_ = 0;
};

bool WriteKernels(const std::string& path) {
  Dl_info binary;
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr || dladdr(reinterpret_cast<void*>(&WriteKernels), &binary) == 0) return false;
  const auto* base = static_cast<const char*>(binary.dli_fbase);
  for (const executor::KernelUse& use : executor::KernelUses()) {
    const ptrdiff_t offset = static_cast<const char*>(use.function) - base;
    std::fprintf(file, "%tx %" PRIu64 " %u %zu\n", offset, use.launches, use.threads,
                 use.dynamic_shared_bytes);
  }
  return std::fclose(file) == 0;
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  std::string schedule = "forward", streams = "eager", kernels;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.rfind("--schedule=", 0) == 0) {
      schedule = argument.substr(11);
    } else if (argument.rfind("--streams=", 0) == 0) {
      streams = argument.substr(10);
    } else if (argument.rfind("--kernels=", 0) == 0) {
      kernels = argument.substr(10);
    } else {
      std::fprintf(stderr, "unknown argument: %s\n", argv[i]);
      return 2;
    }
  }
  const Mode schedule_mode(schedule), streams_mode(streams);
  const int repeats = std::max(schedule_mode.repeats(), streams_mode.repeats());
  if (repeats > 0) GTEST_FLAG_SET(repeat, repeats);
  auto* modes = new Modes(schedule_mode, streams_mode);  // the listeners' list owns it
  testing::UnitTest::GetInstance()->listeners().Append(modes);
  const int result = RUN_ALL_TESTS();
  if (!kernels.empty() && !WriteKernels(kernels)) {
    std::perror(kernels.c_str());
    return 2;
  }
  const executor::Stats stats = executor::GetStats();
  std::printf("%d tests passed on the executor: %" PRIu64 " launches, %" PRIu64 " blocks, %" PRIu64
              " threads\n",
              modes->passed(), stats.launches, stats.blocks, stats.threads);
  return modes->passed() == 0 ? 1 : result;
}
