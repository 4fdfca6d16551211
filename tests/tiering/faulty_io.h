#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>

#include "tiering/io_engine.h"

namespace strata {

// What goes wrong with I/O, drawn for each transfer from a seeded generator. Shared between a test
// and the engine it disturbs; any thread.
class FaultPlan {
 public:
  struct Rates {  // chances of a transfer, 0 to 1
    double error = 0;
    double short_transfer = 0;
    double flip_read = 0;       // one bit of what was read
    double lost_result = 0;     // the transfer is done but reported as an error
    bool sectors_only = false;  // spare transfers of more than one sector
    double delay = 0;           // up to delay_max: completions also change their order
    std::chrono::microseconds delay_max{2000};
    int error_number = 5;  // EIO
    // At most so many faults in a row at one offset, so that a test can count on retries.
    int in_a_row_max = 1 << 30;
  };
  struct Fault {
    bool error = false;
    bool short_transfer = false;
    bool flip = false;
    bool lost_result = false;
    int error_number = 0;
    uint64_t bit = 0;
    std::chrono::microseconds delay{0};
  };

  explicit FaultPlan(uint64_t seed) : random_(seed) {}
  void SetReads(const Rates& rates);
  void SetWrites(const Rates& rates);
  // Until Open, nothing completes.
  void Hold();
  void Open();

  Fault Draw(const IoRequest& request);
  bool held() const;

 private:
  struct Direction {
    Rates rates;
    std::map<uint64_t, int> in_a_row;  // by offset
  };
  bool Chance(double rate);

  mutable std::mutex mutex_;
  std::mt19937_64 random_;
  Direction reads_;
  Direction writes_;
  bool held_ = false;
};

// Wraps every engine that `inner` makes so that its transfers suffer `plan`'s faults.
IoEngineFactory FaultyIo(std::shared_ptr<FaultPlan> plan, IoEngineFactory inner = MakeIoEngine);

}  // namespace strata
