// strata: the command line client. Its exit status is on the help page (cli_options.cc).

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/small_file.h"
#include "base/status_macros.h"
#include "server/config/load_options.h"
#include "server/rpc/fold_events.h"
#include "server/signal_watcher.h"
#include "tools/cli/cli_options.h"
#include "tools/cli/client.h"
#include "tools/cli/plan.h"
#include "tools/cli/report.h"
#include "tools/cli/terminal.h"
#include "tools/cli/top.h"

namespace strata::cli {
namespace {

constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;
constexpr int kExitUnavailable = 3;
constexpr int kExitInterrupted = 130;
constexpr size_t kInputBytesMax = size_t{1} << 30;  // no server takes a larger message

absl::StatusOr<std::string> ReadInput(const std::string& path) {
  if (path == "-") return ReadAtMost(&std::cin, "standard input", kInputBytesMax);
  return ReadSmallFile(path, kInputBytesMax);
}

// Shows a stream as it comes: text on standard output, progress on the terminal.
class StreamView {
 public:
  explicit StreamView(const CliOptions& options) : options_(options) {}

  void Show(const v1::GenerateEvent& event) {
    rpc::FoldEvent(event, &result_);
    if (event.has_progress()) {
      std::cerr << "\rprompt: " << event.progress().prompt_tokens_done() << " of "
                << event.progress().prompt_tokens() << " tokens" << std::flush;
      progress_shown_ = true;
      return;
    }
    if (event.has_delta()) Write(event.delta().text());
    if (event.has_finished()) Write(event.finished().text_tail());
  }
  // After the last event.
  void Finish() {
    ClearProgress();
    if (options_.json) {
      std::cout << ToJson(result_) << std::endl;
      return;
    }
    if (wrote_) std::cout << std::endl;
    if (!options_.quiet && result_.has_usage()) std::cerr << "\n" << SummaryReport(result_);
  }
  void ClearProgress() {
    if (progress_shown_) std::cerr << "\r\033[K" << std::flush;
    progress_shown_ = false;
  }

 private:
  void Write(const std::string& text) {
    ClearProgress();
    if (options_.json || text.empty()) return;
    std::cout << text << std::flush;
    wrote_ = true;
  }

  const CliOptions& options_;
  v1::GenerateResult result_;
  bool progress_shown_ = false;
  bool wrote_ = false;
};

absl::Status Generate(CliOptions* options, Client* client) {
  if (!options->input_file.empty()) {
    STRATA_ASSIGN_OR_RETURN(*options->generate.mutable_text(), ReadInput(options->input_file));
  }
  const bool terminal = isatty(STDERR_FILENO) != 0;
  if (terminal && !options->quiet) options->generate.mutable_output()->set_progress(true);
  StreamView view(*options);
  const absl::Status status = client->Generate(
      options->generate, [&](const v1::GenerateEvent& event) { view.Show(event); });
  if (status.ok()) {
    view.Finish();
  } else {
    view.ClearProgress();
  }
  return status;
}

absl::Status Tokenize(CliOptions* options, Client* client) {
  if (!options->input_file.empty()) {
    STRATA_ASSIGN_OR_RETURN(*options->tokenize.mutable_text(), ReadInput(options->input_file));
  }
  STRATA_ASSIGN_OR_RETURN(const v1::TokenizeResponse response, client->Tokenize(options->tokenize));
  std::cout << (options->json ? absl::StrCat(ToJson(response), "\n") : TokensReport(response));
  return absl::OkStatus();
}

absl::Status Stats(const CliOptions& options, Client* client) {
  STRATA_ASSIGN_OR_RETURN(const v1::CacheStats stats, client->Stats());
  std::cout << (options.json ? absl::StrCat(ToJson(stats), "\n") : StatsReport(stats));
  return absl::OkStatus();
}

absl::Status Info(const CliOptions& options, Client* client) {
  STRATA_ASSIGN_OR_RETURN(const v1::ServerInfo server, client->Info());
  absl::StatusOr<v1::ListModelsResponse> models = v1::ListModelsResponse();
  if (server.ready() || server.draining()) models = client->Models();
  STRATA_RETURN_IF_ERROR(models.status());
  if (options.json) {
    std::cout << R"({"server":)" << ToJson(server) << R"(,"models":)" << ToJson(*models) << "}\n";
  } else {
    std::cout << InfoReport(server, *models);
  }
  return absl::OkStatus();
}

absl::Status Run(CliOptions* options, Client* client) {
  switch (options->command) {
    case Command::kHelp:
      std::cout << options->help;
      return absl::OkStatus();
    case Command::kGenerate:
      return Generate(options, client);
    case Command::kTokenize:
      return Tokenize(options, client);
    case Command::kStats:
      return Stats(*options, client);
    case Command::kTop:
      return Top(*options, client);
    case Command::kInfo:
      return Info(*options, client);
  }
  return absl::OkStatus();
}

int Plan(const std::vector<std::string>& arguments) {
  const absl::StatusOr<PlanRequest> request = ParsePlan(arguments, ProcessEnvironment());
  if (!request.ok()) {
    std::cerr << "strata plan: " << request.status().message() << "\nTry 'strata plan --help'.\n";
    return kExitUsage;
  }
  if (request->help) {
    std::cout << PlanHelp();
    return 0;
  }
  const absl::StatusOr<MemoryPlan> plan = MakePlan(*request);
  if (!plan.ok()) {
    std::cerr << "strata plan: " << plan.status().message() << "\n";
    return kExitFailed;
  }
  std::cout << (request->json ? PlanJson(*plan) : PlanReport(*plan, request->options));
  return 0;
}

int Main(const std::vector<std::string>& arguments) {
  // It talks to no server, and takes a server's options.
  if (!arguments.empty() && arguments.front() == "plan") {
    return Plan({arguments.begin() + 1, arguments.end()});
  }
  const char* server = std::getenv("STRATA_SERVER");
  absl::StatusOr<CliOptions> options = ParseCommandLine(arguments, server == nullptr ? "" : server);
  if (!options.ok()) {
    std::cerr << "strata: " << options.status().message() << "\nTry 'strata --help'.\n";
    return kExitUsage;
  }
  std::atomic<Client*> current{nullptr};
  // Before gRPC starts its threads.
  SignalWatcher signals([&](int, int before) {
    // The first one cancels politely, so that the server knows at once.
    Client* const client = current.load();
    if (before > 0 || client == nullptr) {
      FullScreen::Restore();
      std::_Exit(kExitInterrupted);
    }
    client->Cancel();
  });
  const absl::StatusOr<std::unique_ptr<Client>> client =
      Client::Create(options->server, options->security, options->timeout);
  if (!client.ok()) {
    std::cerr << "strata: " << client.status().message() << "\n";
    return kExitUsage;
  }
  current.store(client->get());
  const absl::Status status = Run(&*options, client->get());
  if (status.ok()) return 0;
  if (absl::IsCancelled(status)) return kExitInterrupted;
  std::cerr << "strata: " << ErrorReport(status);
  if (absl::IsUnavailable(status)) return kExitUnavailable;
  return kExitFailed;
}

}  // namespace
}  // namespace strata::cli

int main(int argc, char** argv) {
  try {
    return strata::cli::Main({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::cerr << "strata: " << error.what() << "\n";
    return strata::cli::kExitFailed;
  }
}
