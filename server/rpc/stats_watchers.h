#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <set>

#include "absl/status/status.h"
#include "grpcpp/support/server_callback.h"
#include "server/rpc/serving_state.h"
#include "strata/v1/inference.pb.h"

namespace strata::rpc {

// The streams of CacheService.WatchStats: each sends a report at once and one each interval. Timers
// are gRPC's own; reports are made of the engine's latest snapshot on gRPC's threads, so the
// engine's thread has no part in them. Any thread.
//   W1: at most `watchers_max` at once. W2: a reader that is slow gets the newest report when it is
//   ready for one: nothing piles up. W3: after EndAll every stream ends, those that come later too.
class StatsWatchers {
 public:
  explicit StatsWatchers(size_t watchers_max = 32) : watchers_max_(watchers_max) {}

  // What gRPC is to be given for a call. Refuses with InvalidArgument an interval out of range,
  // with ResourceExhausted more than `watchers_max` watchers, with Unavailable while loading.
  // `state` outlives the streams.
  grpc::ServerWriteReactor<v1::CacheStats>* Start(const v1::WatchCacheStatsRequest& request,
                                                  const ServingState* state);
  void EndAll(const absl::Status& status);
  // Waits until every stream has sent its end; false when `timeout` comes first.
  bool AwaitGone(std::chrono::milliseconds timeout);

 private:
  class Stream;

  absl::Status Enter(const std::shared_ptr<Stream>& stream);
  void Leave(const std::shared_ptr<Stream>& stream);

  const size_t watchers_max_;
  std::mutex mutex_;
  std::condition_variable left_;
  std::set<std::shared_ptr<Stream>> streams_;  // under mutex_
  std::optional<absl::Status> end_;            // under mutex_
};

}  // namespace strata::rpc
