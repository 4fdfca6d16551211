// Random sequences, steps, releases, resets and faults against the driver's flat model of the
// cache.

#include <cerrno>
#include <cstdlib>
#include <random>
#include <vector>

#include "absl/strings/numbers.h"
#include "gtest/gtest.h"
#include "tests/tiering/cache_fixture.h"
#include "tests/tiering/faulty_io.h"

namespace strata {
namespace {

// One run of the simulator. Everything it does follows from its seed, but for the order in which
// threads finish.
class Simulation {
 public:
  Simulation(TieredCacheImpl* cache, CacheDriver* driver, FaultPlan* faults, ManualClock* clock,
             uint64_t seed)
      : cache_(*cache), driver_(*driver), faults_(*faults), clock_(*clock), random_(seed) {}

  void Run(int actions) {
    for (int i = 0; i < actions && !::testing::Test::HasFailure(); ++i) {
      Act();
      cache_.CheckInvariants();
    }
    faults_.SetReads({});
    faults_.SetWrites({});
    while (!live_.empty()) ReleaseAt(0);
  }
  int steps() const { return steps_; }
  int lost() const { return lost_; }

 private:
  int Below(int limit) { return static_cast<int>(random_() % static_cast<uint64_t>(limit)); }

  void Act() {
    clock_.Advance(std::chrono::milliseconds(Below(200)));
    const int dice = Below(100);
    if (live_.empty() || dice < 6) {
      TryAdmit();
    } else if (dice < 9) {
      ReleaseAt(Below(static_cast<int>(live_.size())));
    } else if (dice < 11) {
      driver_.Reset(&live_[Below(static_cast<int>(live_.size()))]);
    } else if (dice < 13) {
      ChangeFaults();
    } else if (dice < 15) {
      cache_.Poll();
    } else if (dice < 25) {
      cache_.WaitUntilIdle();  // lets blocks reach the disk that steps would outrun
    } else {
      Step();
    }
  }

  void TryAdmit() {
    PositionalPolicy policy;
    policy.sink_blocks = 1 + Below(2);
    policy.hot_blocks = Below(10) == 0 ? PositionalPolicy::kUnlimited : Below(6);
    policy.warm_blocks = Below(8) == 0 ? PositionalPolicy::kUnlimited : Below(8);
    const auto sequence = driver_.Admit(++contents_, 1 + Below(2200), policy);
    if (!sequence.ok()) {
      EXPECT_TRUE(sequence.status().code() == absl::StatusCode::kResourceExhausted ||
                  sequence.status().code() == absl::StatusCode::kOutOfRange)
          << sequence.status();
      return;
    }
    live_.push_back(*sequence);
    if (Below(5) == 0) live_.back().poisoned = {1 + Below(20)};
  }

  void ReleaseAt(int index) {
    driver_.Release(live_[index]);
    driver_.Forget(live_[index].content);
    live_.erase(live_.begin() + index);
  }

  void ChangeFaults() {
    const bool calm = Below(2) == 0;
    FaultPlan::Rates reads;
    FaultPlan::Rates writes;
    reads.delay = writes.delay = 0.3;
    reads.delay_max = writes.delay_max = std::chrono::microseconds(300);
    if (!calm) {
      reads.error = reads.short_transfer = 0.15 * Below(3);
      reads.flip_read = 0.4 * Below(3);
      writes.error = writes.short_transfer = 0.15 * Below(4);
      writes.error_number = Below(2) == 0 ? ENOSPC : EIO;
    }
    faults_.SetReads(reads);
    faults_.SetWrites(writes);
  }

  // Some of the live sequences, each with a random part of what is left of its piece.
  void Step() {
    std::vector<CacheDriver::Turn> turns;
    for (CacheDriver::Sequence& sequence : live_) {
      const int32_t left = driver_.PieceLeft(sequence);
      if (left == 0 || Below(3) == 0) continue;
      turns.push_back({&sequence, Below(2) == 0 ? left : 1 + Below(left)});
    }
    if (turns.empty()) return;
    ++steps_;
    Recover(driver_.Step(turns, /*abandon=*/Below(20) == 0));
  }

  // What the engine does about errors.
  void Recover(const absl::Status& status) {
    if (status.ok()) return;
    if (status.code() == absl::StatusCode::kDataLoss) {
      const std::vector<SequenceHandle> damaged = cache_.TakeDamaged();
      for (CacheDriver::Sequence& sequence : live_) {
        if (std::find(damaged.begin(), damaged.end(), sequence.handle) == damaged.end()) continue;
        driver_.Reset(&sequence);
        ++lost_;
      }
      return;
    }
    ASSERT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    const SequenceHandle blocked = TieredCache::SequenceOf(status);
    for (size_t i = 0; i < live_.size(); ++i) {
      if (live_[i].handle != blocked) continue;
      ReleaseAt(static_cast<int>(i));
      return;
    }
    ADD_FAILURE() << "no such sequence: " << status;
  }

  TieredCacheImpl& cache_;
  CacheDriver& driver_;
  FaultPlan& faults_;
  ManualClock& clock_;
  std::mt19937_64 random_;
  std::vector<CacheDriver::Sequence> live_;
  uint64_t contents_ = 0;
  int steps_ = 0;
  int lost_ = 0;
};

// Set to repeat one run: STRATA_SIMULATOR_SEED=123.
std::vector<uint64_t> Seeds() {
  const char* given = std::getenv("STRATA_SIMULATOR_SEED");
  uint64_t seed = 0;
  if (given != nullptr && absl::SimpleAtoi(given, &seed)) return {seed};
  std::vector<uint64_t> seeds(12);
  for (size_t i = 0; i < seeds.size(); ++i) seeds[i] = 1000 + i;
  return seeds;
}

class SimulatorTest : public CacheTest {};

TEST_F(SimulatorTest, EveryPageIsWhatTheModelSays) {
  int steps = 0;
  int lost = 0;
  CacheSnapshot total;
  for (const uint64_t seed : Seeds()) {
    SCOPED_TRACE(::testing::Message() << "repeat with STRATA_SIMULATOR_SEED=" << seed);
    std::mt19937_64 random(seed);
    const ScratchPath file;
    SmallBudget budget{.hot_blocks = 40,
                       .warm_blocks = 30,
                       .cold_blocks = 80,
                       .staging_units = 150,
                       .cold_path = file.path(),
                       .geometry = {9, 1, 32}};
    TierOptions options = SmallOptions(budget);
    options.max_context = 2300;
    options.piece_tokens = 64 << (random() % 3);
    options.io_engine = random() % 2 == 0 ? "auto" : "threads";
    // Just enough units, or a few more, or enough for all.
    while (!TierPlan::Make(options).CheckMinimum(options).ok()) options.staging_bytes += 16 << 10;
    options.staging_bytes += random() % 3 * (256 << 10);
    auto faults = std::make_shared<FaultPlan>(seed);
    ManualClock clock;
    TierEnvironment environment;
    environment.clock = &clock;
    environment.make_io = FaultyIo(faults);
    environment.direct_io = random() % 2 == 0;
    Make(options, environment);
    Simulation simulation(cache_.get(), driver_.get(), faults.get(), &clock, seed);
    simulation.Run(250);
    // Transfers that drew a fault before the end still fail; then the pause after them passes.
    cache_->WaitUntilIdle();
    clock.Advance(std::chrono::seconds(30));
    ExpectEmpty();
    EXPECT_EQ(ColdStore::Inspect(file.path(), true)->records, 0u);
    steps += simulation.steps();
    lost += simulation.lost();
    const CacheSnapshot snapshot = cache_->Snapshot();
    total.demoted_pages[1] += snapshot.demoted_pages[1];
    for (size_t i = 0; i < total.integrity_failures.size(); ++i) {
      total.integrity_failures[i] += snapshot.integrity_failures[i];
    }
    total.refused_blocks += snapshot.refused_blocks;
    total.links[2].pages += snapshot.links[2].pages;
    driver_.reset();
    cache_.reset();  // its threads read the clock
    if (HasFailure()) break;
  }
  // The runs went where they should.
  if (std::getenv("STRATA_SIMULATOR_SEED") != nullptr) return;
  EXPECT_GT(steps, 500);
  EXPECT_GT(lost, 5);
  EXPECT_GT(total.demoted_pages[1], 1000u);
  EXPECT_GT(total.links[2].pages, 1000u);
  EXPECT_GT(total.integrity_failures[static_cast<size_t>(Damage::kChecksum)], 0u);
  EXPECT_GT(total.refused_blocks, 0u);
}

}  // namespace
}  // namespace strata
