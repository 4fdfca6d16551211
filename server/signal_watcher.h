#pragma once

#include <csignal>
#include <functional>
#include <thread>

namespace strata {

// Turns SIGTERM and SIGINT into calls on a thread of its own. The constructor blocks both in the
// calling thread, so it must come before any other thread is started: those inherit that.
class SignalWatcher {
 public:
  // Called with the signal's number and how many came before it. Must not block.
  explicit SignalWatcher(std::function<void(int signal, int before)> handler);
  ~SignalWatcher();
  SignalWatcher(const SignalWatcher&) = delete;
  SignalWatcher& operator=(const SignalWatcher&) = delete;

 private:
  void Loop();

  sigset_t signals_;
  std::function<void(int, int)> handler_;
  std::thread thread_;
};

}  // namespace strata
