#include "server/signal_watcher.h"

#include <pthread.h>

#include <utility>

namespace strata {
namespace {

// Ends the loop; nobody else sends it to this thread.
constexpr int kStopSignal = SIGUSR2;

}  // namespace

SignalWatcher::SignalWatcher(std::function<void(int, int)> handler) : handler_(std::move(handler)) {
  sigemptyset(&signals_);
  sigaddset(&signals_, SIGTERM);
  sigaddset(&signals_, SIGINT);
  sigaddset(&signals_, kStopSignal);
  pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
  thread_ = std::thread([this] { Loop(); });
}

SignalWatcher::~SignalWatcher() {
  pthread_kill(thread_.native_handle(), kStopSignal);
  thread_.join();
}

void SignalWatcher::Loop() {
  int before = 0;
  int signal = 0;
  while (sigwait(&signals_, &signal) == 0 && signal != kStopSignal) handler_(signal, before++);
}

}  // namespace strata
