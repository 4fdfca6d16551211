#include "tools/cli/top.h"

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <iostream>
#include <mutex>
#include <optional>
#include <thread>

#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "google/protobuf/util/time_util.h"
#include "tools/cli/report.h"
#include "tools/cli/terminal.h"
#include "tools/cli/top_frame.h"
#include "tools/cli/top_view.h"

namespace strata::cli {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kKeyWait{50};
constexpr milliseconds kRetryPause{1000};

v1::WatchCacheStatsRequest RequestOf(const CliOptions& options) {
  v1::WatchCacheStatsRequest request;
  *request.mutable_interval() =
      google::protobuf::util::TimeUtil::NanosecondsToDuration(options.interval.count());
  return request;
}

// Reports as lines of JSON or as frames of plain text. A frame needs two reports for its rates.
absl::Status PrintReports(const CliOptions& options, Client* client) {
  StatsHistory history;
  FrameSize size = TerminalSize();
  size.rows = 1000;
  const FrameStyle style{.color = false, .unicode = LocaleHasUnicode(), .keys = false};
  const absl::Status status = client->Watch(RequestOf(options), [&](const v1::CacheStats& stats) {
    if (options.json) {
      std::cout << ToJson(stats) << std::endl;
      return !options.once;
    }
    history.Add(stats);
    if (history.size() < 2) return true;
    const auto lines = DrawTop(history.View(options.server), size, style);
    std::cout << absl::StrJoin(lines, "\n") << "\n" << (options.once ? "" : "\n") << std::flush;
    return !options.once;
  });
  return status;
}

// Whether it is worth asking again: the server is gone, or sent its watchers away.
bool MayComeBack(const absl::Status& status) { return status.ok() || absl::IsUnavailable(status); }

// What the watching thread tells the drawing one.
class Feed {
 public:
  Feed(const CliOptions& options, Client* client)
      : options_(options), client_(client), thread_([this] { Loop(); }) {}
  ~Feed() {
    client_->Cancel();
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    stopped_.notify_all();
    thread_.join();
  }

  // The newest view, if it is another one than `seen`, which is updated.
  std::optional<TopView> Newer(uint64_t* seen) {
    const std::lock_guard lock(mutex_);
    if (*seen == version_ || history_.empty()) return std::nullopt;
    *seen = version_;
    TopView view = history_.View(options_.server);
    view.lost = lost_;
    return view;
  }
  // Why nothing more will come.
  std::optional<absl::Status> end() {
    const std::lock_guard lock(mutex_);
    return end_;
  }

 private:
  void Loop() {
    while (true) {
      const absl::Status status =
          client_->Watch(RequestOf(options_), [this](const v1::CacheStats& stats) {
            const std::lock_guard lock(mutex_);
            history_.Add(stats);
            lost_.clear();
            ++version_;
            return true;
          });
      std::unique_lock lock(mutex_);
      // A server that was never there is an error; one that went may come back.
      if (!MayComeBack(status) || history_.empty()) {
        end_ = status;
        return;
      }
      lost_ = status.ok() ? "the stream ended" : std::string(status.message());
      ++version_;
      if (stopped_.wait_for(lock, kRetryPause, [this] { return stop_; })) return;
    }
  }

  const CliOptions& options_;
  Client* const client_;
  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stop_ = false;
  StatsHistory history_;
  std::string lost_;
  uint64_t version_ = 0;
  std::optional<absl::Status> end_;
  std::thread thread_;  // last: uses all the others
};

// Draws until q or the end of the feed.
absl::Status ShowFullScreen(const CliOptions& options, Client* client) {
  Feed feed(options, client);
  const FrameStyle style{.color = true, .unicode = LocaleHasUnicode(), .keys = true};
  std::optional<FullScreen> screen;  // from the first report on
  std::optional<TopView> view;
  uint64_t seen = 0;
  FrameSize drawn;
  while (true) {
    if (const auto end = feed.end(); end.has_value()) return *end;
    std::optional<TopView> newer = feed.Newer(&seen);
    const bool fresh = newer.has_value();
    if (fresh) view = std::move(newer);
    if (!view.has_value()) {
      std::this_thread::sleep_for(kKeyWait);
      continue;
    }
    if (!screen.has_value()) screen.emplace();
    const FrameSize size = TerminalSize();
    if (fresh || size.rows != drawn.rows || size.columns != drawn.columns) {
      screen->Show(DrawTop(*view, size, style));
      drawn = size;
    }
    const char key = screen->Key(kKeyWait);
    if (key == 'q' || key == 'Q') return absl::OkStatus();
  }
}

}  // namespace

absl::Status Top(const CliOptions& options, Client* client) {
  const bool full_screen = isatty(STDOUT_FILENO) != 0 && !options.once && !options.json;
  return full_screen ? ShowFullScreen(options, client) : PrintReports(options, client);
}

}  // namespace strata::cli
