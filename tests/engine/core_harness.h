#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "server/engine/engine_core.h"
#include "tests/engine/fake_cache.h"
#include "tests/engine/fake_model.h"
#include "tests/engine/recording_sink.h"

namespace strata {

// An EngineCore on the fakes, turned by the test.
class CoreHarness {
 public:
  struct Options {
    EngineOptions engine;
    FakeCacheOptions cache;
    ThreadPool* pool = nullptr;
    Options() {
      engine.max_sequences = 16;
      engine.max_batch_tokens = 160;
      engine.max_context = 1024;
      cache.geometry = FakeModel().config().Geometry();
    }
  };

  explicit CoreHarness(const Options& options = {})
      : cache(options.cache),
        core({.options = options.engine,
              .default_policy = {},
              .model = &model,
              .cache = &cache,
              .clock = &clock,
              .pool = options.pool,
              .gauges = &gauges,
              .publish = [this](auto published) { snapshot = std::move(published); }}) {}
  ~CoreHarness() { core.CancelAll(); }

  // Greedy, `max_tokens` tokens, never ended by EOS.
  static Request Plain(std::vector<int32_t> prompt, int32_t max_tokens) {
    Request request;
    request.prompt = std::move(prompt);
    request.stop.max_tokens = max_tokens;
    request.stop.ignore_eos = true;
    return request;
  }

  struct Running {
    uint64_t ticket;
    std::shared_ptr<RecordingSink> sink;
  };
  Running Submit(Request request) {
    auto sink = std::make_shared<RecordingSink>();
    ++gauges.in_flight;
    ++gauges.waiting;
    core.Submit({next_ticket, std::move(request), sink, absl::OkStatus()});
    return {next_ticket++, sink};
  }

  EngineCore::Turn RunTurn() {
    const EngineCore::Turn turn = core.RunTurn();
    cache.CheckInvariants();
    return turn;
  }
  void RunTurns(int count) {
    for (int i = 0; i < count; ++i) RunTurn();
  }
  // Until nothing runs and nothing waits; false if that takes more than `turns_max` turns.
  bool RunUntilIdle(int turns_max = 20000) {
    for (int i = 0; i < turns_max; ++i) {
      if (RunTurn() == EngineCore::Turn::kIdle) return true;
    }
    return false;
  }
  // Runs one request alone.
  std::shared_ptr<RecordingSink> Run(Request request) {
    const Running running = Submit(std::move(request));
    STRATA_CHECK(RunUntilIdle());
    return running.sink;
  }
  bool CacheIsEmpty() const {
    const CacheSnapshot now = cache.Snapshot();
    return now.sequences == 0 && now.tiers[0].used_bytes == 0 && now.tiers[0].reserved_bytes == 0;
  }

  ManualClock clock;
  FakeModel model;
  FakeCache cache;
  EngineGauges gauges;
  std::shared_ptr<const EngineSnapshot> snapshot;
  uint64_t next_ticket = 1;
  EngineCore core;
};

}  // namespace strata
