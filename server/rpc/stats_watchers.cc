#include "server/rpc/stats_watchers.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "google/protobuf/util/time_util.h"
#include "grpcpp/alarm.h"
#include "server/rpc/errors.h"
#include "server/rpc/stats_report.h"
#include "server/rpc/status_to_grpc.h"

namespace strata::rpc {
namespace {

using google::protobuf::util::TimeUtil;
using std::chrono::milliseconds;
using SystemTime = std::chrono::system_clock::time_point;  // what gRPC's alarms are set by

constexpr milliseconds kIntervalMin{100};
constexpr milliseconds kIntervalMax{60'000};
constexpr milliseconds kIntervalDefault{1'000};

absl::StatusOr<milliseconds> IntervalOf(const v1::WatchCacheStatsRequest& request) {
  if (!request.has_interval()) return kIntervalDefault;
  const google::protobuf::Duration& given = request.interval();
  // Compared as they come: converting a duration of centuries would overflow.
  if (given < TimeUtil::MillisecondsToDuration(kIntervalMin.count()) ||
      given > TimeUtil::MillisecondsToDuration(kIntervalMax.count())) {
    const double seconds =
        static_cast<double>(given.seconds()) + static_cast<double>(given.nanos()) * 1e-9;
    return InvalidField("interval", absl::StrCat(seconds, " s; must be 0.1 s to 60 s"));
  }
  return milliseconds(TimeUtil::DurationToMilliseconds(given));
}

// A stream that is refused before it began.
class RefusedStream final : public grpc::ServerWriteReactor<v1::CacheStats> {
 public:
  explicit RefusedStream(const absl::Status& status) { Finish(ToGrpcStatus(status)); }
  void OnDone() override { delete this; }
};

}  // namespace

// Either writes, or waits for its alarm, or has finished. Owned by the set it is in, until gRPC is
// done with it.
class StatsWatchers::Stream final : public grpc::ServerWriteReactor<v1::CacheStats>,
                                    public std::enable_shared_from_this<Stream> {
 public:
  Stream(StatsWatchers* watchers, const ServingState* state, milliseconds interval)
      : watchers_(watchers), state_(state), interval_(interval) {}

  // The first report.
  void Begin() {
    due_ = std::chrono::system_clock::now();
    Proceed();
  }
  // Ends with `status`, unless it has an end already.
  void End(const absl::Status& status) {
    bool wake = false;
    {
      const std::lock_guard lock(mutex_);
      if (end_.has_value()) return;
      end_ = status;
      wake = waiting_;
    }
    // Its callback comes early then, and finishes.
    if (wake) alarm_.Cancel();
  }

  void OnCancel() override { End(absl::CancelledError("cancelled by the client")); }
  void OnWriteDone(bool ok) override {
    if (!ok) End(absl::CancelledError("the client is gone"));
    const auto now = std::chrono::system_clock::now();
    {
      const std::lock_guard lock(mutex_);
      // The grid of the first report, less what was missed; a new one if the clock was set back.
      due_ =
          now < due_ ? now + interval_ : std::max(due_ + interval_, now - (now - due_) % interval_);
      if (!end_.has_value()) {
        waiting_ = true;
        alarm_.Set(due_, [this](bool) {
          // The set keeps the stream while the alarm is set; from Finish on this must.
          const std::shared_ptr<Stream> self = shared_from_this();
          self->Proceed();
        });
        return;
      }
    }
    Proceed();
  }
  void OnDone() override { watchers_->Leave(shared_from_this()); }

 private:
  // Neither writing nor waiting now: the next report, or the end.
  void Proceed() {
    const absl::StatusOr<v1::CacheStats> report = ReportStats(*state_);
    const std::lock_guard lock(mutex_);
    waiting_ = false;
    if (!end_.has_value() && !report.ok()) end_ = report.status();
    if (end_.has_value()) {
      Finish(ToGrpcStatus(*end_));
      return;
    }
    report_ = *report;
    StartWrite(&report_);
  }

  StatsWatchers* const watchers_;
  const ServingState* const state_;
  const milliseconds interval_;
  std::mutex mutex_;
  SystemTime due_;                   // of the report sent last
  bool waiting_ = false;             // the alarm is set
  std::optional<absl::Status> end_;  // how to finish
  v1::CacheStats report_;            // gRPC reads it while it is written
  grpc::Alarm alarm_;
};

absl::Status StatsWatchers::Enter(const std::shared_ptr<Stream>& stream) {
  const std::lock_guard lock(mutex_);
  if (end_.has_value()) return *end_;
  if (streams_.size() >= watchers_max_) {
    const std::string limit = absl::StrCat(watchers_max_, " clients watch already");
    return DescribeEngineError(absl::ResourceExhaustedError(limit), {{"watchers", limit}});
  }
  streams_.insert(stream);
  return absl::OkStatus();
}

void StatsWatchers::Leave(const std::shared_ptr<Stream>& stream) {
  const std::lock_guard lock(mutex_);
  streams_.erase(stream);
  left_.notify_all();
}

grpc::ServerWriteReactor<v1::CacheStats>* StatsWatchers::Start(
    const v1::WatchCacheStatsRequest& request, const ServingState* state) {
  const absl::StatusOr<milliseconds> interval = IntervalOf(request);
  if (!interval.ok()) return new RefusedStream(interval.status());
  const absl::Status loaded = state->Model().status();
  if (!loaded.ok()) return new RefusedStream(loaded);
  const auto stream = std::make_shared<Stream>(this, state, *interval);
  const absl::Status entered = Enter(stream);
  if (!entered.ok()) return new RefusedStream(entered);
  stream->Begin();
  return stream.get();
}

void StatsWatchers::EndAll(const absl::Status& status) {
  std::set<std::shared_ptr<Stream>> streams;
  {
    const std::lock_guard lock(mutex_);
    end_ = status;
    streams = streams_;
  }
  for (const std::shared_ptr<Stream>& stream : streams) stream->End(status);
}

bool StatsWatchers::AwaitGone(milliseconds timeout) {
  std::unique_lock lock(mutex_);
  return left_.wait_for(lock, timeout, [&] { return streams_.empty(); });
}

}  // namespace strata::rpc
