#pragma once

#include <chrono>

namespace strata {

// Monotonic time, behind an interface so that deadlines and timeouts can be tested.
class Clock {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  virtual ~Clock() = default;
  virtual TimePoint Now() const = 0;
  static const Clock* Real();  // never null, never deleted
};

// A clock that moves only when told to. Not thread-safe.
class ManualClock : public Clock {
 public:
  TimePoint Now() const override { return now_; }
  void Advance(std::chrono::nanoseconds by) { now_ += by; }

 private:
  TimePoint now_{};
};

}  // namespace strata
