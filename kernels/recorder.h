#pragma once

#include <cstdint>

namespace strata {

// Enqueues stretches of a backend's calls at once that are the same in every step: launching some
// ten kernels one by one takes the host longer than a decode step gives it. Engine thread.
class Recorder {
 public:
  virtual ~Recorder() = default;

  // Whoever uses a key promises that the calls are the same every time: same functions, pointers
  // and sizes, and no host array among them. True: they are enqueued, from a recording. False: make
  // them, then call End.
  virtual bool Replay(uint64_t key) = 0;
  virtual void End() = 0;
};

}  // namespace strata
