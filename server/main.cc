// strata-server: wires options, model, cache, engine and the network together. What it does, and
// its exit status, is on the help page (config/help_page.cc).

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "google/protobuf/stubs/logging.h"
#include "kernels/backend.h"
#include "model/model.h"
#include "server/build_info.h"
#include "server/config/derive_options.h"
#include "server/config/format_name.h"
#include "server/config/load_options.h"
#include "server/config/memory_plan.h"
#include "server/config/option_values.h"
#include "server/engine/engine.h"
#include "server/logging.h"
#include "server/metrics/engine_metrics.h"
#include "server/metrics/http_server.h"
#include "server/open_backend.h"
#include "server/rpc/grpc_server.h"
#include "server/rpc/stats_report.h"
#include "server/signal_watcher.h"
#include "spdlog/spdlog.h"
#include "tiering/tiered_cache.h"

namespace strata {
namespace {

constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;
constexpr int kExitCutOff = 3;
constexpr absl::Duration kStallCheck = absl::Seconds(1);

std::vector<std::string> CpuFeatures() {
  std::vector<std::string> features;
  const auto add = [&](bool has, const char* name) {
    if (has) features.emplace_back(name);
  };
  add(__builtin_cpu_supports("avx2"), "avx2");
  add(__builtin_cpu_supports("fma"), "fma");
  add(__builtin_cpu_supports("avx512f"), "avx512f");
  add(__builtin_cpu_supports("avx512bw"), "avx512bw");
  add(__builtin_cpu_supports("avx512vl"), "avx512vl");
  add(__builtin_cpu_supports("avx512vnni"), "avx512vnni");
  add(__builtin_cpu_supports("avx512bf16"), "avx512bf16");
  return features;
}

rpc::GrpcServerOptions DeriveGrpcOptions(const ServerOptions& options) {
  const auto seconds = [](std::chrono::nanoseconds time) {
    return std::chrono::ceil<std::chrono::seconds>(time);
  };
  const SecuritySection& security = options.security;
  rpc::GrpcServerOptions derived;
  derived.listen = options.listen.address;
  if (options.listen.health != "none") derived.health_listen = options.listen.health;
  derived.security = {{security.tls_cert, security.tls_key, security.tls_client_ca},
                      security.token_file,
                      security.cache_token_file};
  derived.receive_bytes_max = static_cast<int>(options.limits.max_message_bytes);
  derived.memory_bytes = MessageMemory(options);
  derived.metadata_bytes_max = static_cast<int>(options.limits.max_metadata_bytes);
  derived.connections_max = options.limits.max_connections;
  derived.streams_max = options.limits.max_streams;
  derived.connection_age_max = seconds(options.limits.connection_age);
  derived.connection_grace = seconds(options.limits.connection_grace);
  return derived;
}

// Holds the file of --address-file; gone when the server is.
class AddressFile {
 public:
  ~AddressFile() {
    if (!path_.empty()) unlink(path_.c_str());
  }
  // Whole or absent: whoever waits for the file reads both lines.
  absl::Status Write(const std::string& path, const std::string& text) {
    if (path.empty()) return absl::OkStatus();
    const std::string part = absl::StrCat(path, ".part");
    std::ofstream(part) << text;
    if (std::rename(part.c_str(), path.c_str()) != 0) {
      return absl::InvalidArgumentError(absl::StrCat("address-file: cannot write ", path));
    }
    path_ = path;
    return absl::OkStatus();
  }

 private:
  std::string path_;
};

// What one process serves. Members are declared in the order they are built, so that the server
// goes before the engine that its calls hold on to.
class Application {
 public:
  explicit Application(const ServerOptions& options) : options_(options) {}

  absl::Status Listen();
  absl::Status Load();
  // Until `stop`; then drains. The exit status.
  int Run(absl::Notification* stop);

 private:
  absl::StatusOr<rpc::ServedModel> Publishable() const;
  MetricLabels Labels() const;
  bool Stalled() const { return engine_ != nullptr && engine_->Snapshot()->stalled; }
  void LogPlan() const;

  const ServerOptions options_;
  AddressFile address_file_;
  rpc::CallMetrics call_metrics_;
  rpc::ServingState state_;
  Backend backend_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Engine> engine_;
  std::shared_ptr<EngineMetrics> engine_metrics_;
  const std::shared_ptr<ProcessMetrics> process_metrics_ = std::make_shared<ProcessMetrics>();
  std::atomic<bool> live_{true};
  std::unique_ptr<MetricsHttpServer> http_;
  std::unique_ptr<rpc::GrpcServer> server_;
};

absl::Status Application::Listen() {
  STRATA_ASSIGN_OR_RETURN(backend_, OpenBackend(options_.device));

  rpc::RequestDefaults defaults;
  defaults.max_tokens = options_.limits.default_max_tokens;
  const rpc::ServerFacts facts = {kBuildVersion, kBuildCommit, backend_.name, CpuFeatures(),
                                  DevicesOf(backend_)};
  STRATA_ASSIGN_OR_RETURN(
      server_, rpc::GrpcServer::Start(DeriveGrpcOptions(options_), defaults, facts, &state_,
                                      &call_metrics_, Clock::Real()));
  spdlog::info("listening for gRPC on {}", server_->address());
  if (!server_->health_address().empty()) {
    spdlog::info("serving grpc.health.v1 on {}", server_->health_address());
  }
  std::string addresses = absl::StrCat(server_->address(), "\n");
  if (options_.listen.metrics != "none") {
    STRATA_ASSIGN_OR_RETURN(
        http_, MetricsHttpServer::Start(
                   options_.listen.metrics,
                   {[this] { return live_.load(); }, [this] { return state_.ready(); }},
                   [this] { return rpc::StatsJson(state_); }));
    http_->Add(call_metrics_.registry());
    http_->Add(server_->security_metrics());
    http_->Add(process_metrics_);
    spdlog::info("serving /metrics, /healthz, /readyz and a page on http://{}/", http_->address());
    absl::StrAppend(&addresses, http_->address(), "\n");
  }
  if (!server_->health_address().empty()) {
    if (http_ == nullptr) absl::StrAppend(&addresses, "none\n");
    absl::StrAppend(&addresses, server_->health_address(), "\n");
  }
  return address_file_.Write(options_.listen.address_file, addresses);
}

absl::Status Application::Load() {
  ModelOptions model_options;
  model_options.path = options_.model.path;
  model_options.max_rows = options_.limits.max_batch_tokens;
  model_options.calibrate_basis = options_.model.basis == "calibrated";
  model_options.plain_basis = options_.model.basis == "plain";
  model_options.basis_cache_dir = options_.model.basis_cache;
  STRATA_ASSIGN_OR_RETURN(model_, Model::Load(model_options, &backend_));
  spdlog::info("loaded {}: {}, {} MiB of {} weights, on {}", options_.model.path,
               model_->config().architecture, model_->weight_bytes() >> 20, model_->weight_format(),
               backend_.name);
  for (const std::string& note : model_->load_notes()) spdlog::info("{}", note);

  const ModelFacts facts = {model_->config().Geometry(), model_->config().context_length,
                            model_->fingerprint(), model_->basis().Hash(), model_->k_errors()};
  MachineFacts machine = ReadMachine(options_.cache.cold_path);
  if (!backend_.memory->host_accessible()) {
    STRATA_ASSIGN_OR_RETURN(const DeviceMemory::Available memory,
                            backend_.memory->AvailableDevice());
    machine.device_available = memory.bytes;
  }
  STRATA_ASSIGN_OR_RETURN(const TierOptions tiers, DeriveTierOptions(options_, facts, machine));
  STRATA_ASSIGN_OR_RETURN(std::unique_ptr<TieredCache> cache,
                          TieredCache::Create(tiers, backend_.codec.get(), backend_.memory.get()));
  STRATA_ASSIGN_OR_RETURN(
      engine_, Engine::Create(DeriveEngineOptions(options_, tiers), model_.get(), std::move(cache),
                              Clock::Real(), backend_.pool.get()));
  LogPlan();
  if (http_ != nullptr) {
    engine_metrics_ = std::make_shared<EngineMetrics>(engine_.get(), Labels());
    http_->Add(engine_metrics_);
  }
  rpc::ServedModel served;
  served.name = ModelNameOf(options_.model);
  served.architecture = model_->config().architecture;
  served.weight_format = model_->weight_format();
  served.weight_bytes = model_->weight_bytes();
  served.fingerprint = model_->fingerprint();
  served.vocab_size = model_->config().vocab_size;
  served.context_length = engine_->tier_options().max_context;
  served.longest_token = rpc::LongestToken(model_->tokenizer());
  if (const auto warm = backend_.attention->warm_attention(); warm.has_value()) {
    spdlog::info("warm pages are attended by the {} (GPU {:.3g}, CPU {:.3g} tokens/s a layer)",
                 warm->on_host ? "CPU" : "GPU", warm->device_tokens_per_s, warm->host_tokens_per_s);
    if (!warm->on_host) {
      spdlog::info("the GPU gathers them in {} of its memory", FormatSize(warm->gather_bytes));
    }
  }
  served.tokenizer = &model_->tokenizer();
  served.engine = engine_.get();
  state_.Publish(std::move(served));
  server_->MarkReady();
  spdlog::info("ready: serving '{}'", ModelNameOf(options_.model));
  return absl::OkStatus();
}

MetricLabels Application::Labels() const {
  return {kBuildVersion,
          kBuildCommit,
          ModelNameOf(options_.model),
          model_->config().architecture,
          model_->weight_format(),
          backend_.name,
          DevicesOf(backend_).front(),
          backend_.attention->warm_attention()};
}

void Application::LogPlan() const {
  const TierOptions& tiers = engine_->tier_options();
  const auto window = [](int32_t blocks) {
    return blocks >= PositionalPolicy::kUnlimited ? std::string("unlimited")
                                                  : absl::StrCat(int64_t{blocks} * kBlockTokens);
  };
  const PositionalPolicy& policy = engine_->default_policy();
  spdlog::info("tiers: hot {} MiB {}, warm {} MiB {}, cold {} MiB {}, staging {} MiB",
               tiers.hot_bytes >> 20, TierFormatName(tiers, Tier::kHot), tiers.warm_bytes >> 20,
               TierFormatName(tiers, Tier::kWarm), tiers.cold_bytes >> 20,
               TierFormatName(tiers, Tier::kCold), tiers.staging_bytes >> 20);
  spdlog::info(
      "windows: first {} and latest {} tokens hot, {} before them warm, the rest cold; "
      "{} sequences of at most {} tokens",
      window(policy.sink_blocks), window(policy.hot_blocks), window(policy.warm_blocks),
      tiers.max_sequences, tiers.max_context);
}

int Application::Run(absl::Notification* stop) {
  while (!stop->WaitForNotificationWithTimeout(kStallCheck)) {
    server_->RefreshSecurity();
    const bool live = !Stalled();
    if (live_.exchange(live) == live) continue;
    server_->SetLive(live);
    if (!live) spdlog::error("the engine has work but makes no step: not live");
  }
  spdlog::info("draining: {} requests in flight, at most {} s", engine_->InFlight(),
               std::chrono::duration<double>(options_.listen.drain_timeout).count());
  const bool idle = server_->Drain(options_.listen.drain_timeout);
  spdlog::info(idle ? "drained" : "drain timeout reached: requests were cut off");
  return idle ? 0 : kExitCutOff;
}

int Serve(const LoadedOptions& loaded) {
  SetUpLogging(loaded.options.log);
  // Protobuf writes to stderr what it dislikes about requests; clients are told anyway.
  google::protobuf::SetLogHandler([](google::protobuf::LogLevel, const char*, int,
                                     const std::string& message) { spdlog::debug("{}", message); });
  absl::Notification stop;
  std::atomic<bool> loading{true};
  SignalWatcher signals([&](int signal, int before) {
    if (before > 0) std::_Exit(128 + signal);
    spdlog::info("signal {}", signal);
    // Nothing is in flight yet, and loading cannot be interrupted.
    if (loading.load()) std::_Exit(0);
    stop.Notify();
  });
  spdlog::info("strata-server {} ({}) with\n{}", kBuildVersion, kBuildCommit, PrintOptions(loaded));
  Application application(loaded.options);
  absl::Status status = application.Listen();
  if (status.ok()) status = application.Load();
  if (!status.ok()) {
    spdlog::critical("cannot start: {}", std::string(status.message()));
    return kExitFailed;
  }
  loading.store(false);
  return application.Run(&stop);
}

int Main(const std::vector<std::string>& arguments) {
  const absl::StatusOr<LoadedOptions> loaded = LoadOptions(arguments, ProcessEnvironment());
  if (!loaded.ok()) {
    std::cerr << "strata-server: " << loaded.status().message()
              << "\nTry 'strata-server --help'.\n";
    return kExitUsage;
  }
  switch (loaded->command) {
    case Command::kHelp:
      std::cout << HelpPage();
      return 0;
    case Command::kVersion:
      std::cout << "strata-server " << kBuildVersion << " (" << kBuildCommit << ")\n";
      return 0;
    case Command::kPrintConfig:
      std::cout << PrintOptions(*loaded);
      return 0;
    case Command::kServe:
      return Serve(*loaded);
  }
  return kExitFailed;
}

}  // namespace
}  // namespace strata

int main(int argc, char** argv) {
  try {
    return strata::Main({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::cerr << "strata-server: " << error.what() << "\n";
    return strata::kExitFailed;
  }
}
