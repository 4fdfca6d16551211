#include "tools/cli/cli_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "google/protobuf/util/time_util.h"
#include "server/config/option_values.h"

namespace strata::cli {
namespace {

using google::protobuf::util::TimeUtil;

constexpr char kFooter[] = R"(
EXIT STATUS
  0    done
  1    the call failed
  2    wrong arguments
  3    the server cannot be reached, or is loading or shutting down
  130  interrupted

ENVIRONMENT
  STRATA_SERVER  the server's address, where --server is not given

EXAMPLES
  strata generate --max-tokens=64 'The capital of France is'
  strata generate -f report.txt --preset=compact --temperature=0.7 --seed=1
  strata generate --json 'Hello' | jq -r '.choices[0].text'
  strata stats
  strata top
  strata top --once --json | jq .tiers
  strata plan --model=m.gguf --memory=64GiB --max-sequences=32)";

std::chrono::nanoseconds DurationOf(const std::string& text) {
  const auto duration = ParseDuration(text);
  if (!duration.ok()) throw CLI::ValidationError(std::string(duration.status().message()));
  return *duration;
}

google::protobuf::Duration ProtoDurationOf(const std::string& text) {
  return TimeUtil::NanosecondsToDuration(DurationOf(text).count());
}

void AddInput(CLI::App* app, CliOptions* options) {
  auto* request = &options->generate;
  app->add_option_function<std::string>(
      "PROMPT", [request](const std::string& text) { request->set_text(text); },
      "The prompt; without it, and without -f or --ids, standard input");
  app->add_option("-f,--file", options->input_file, "Read the prompt from FILE; -: standard input")
      ->type_name("FILE");
  app->add_option_function<std::vector<uint32_t>>(
         "--ids",
         [request](const std::vector<uint32_t>& ids) {
           request->mutable_token_ids()->mutable_ids()->Add(ids.begin(), ids.end());
         },
         "The prompt as token ids, separated by commas")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("ID,...");
  app->add_option_function<std::string>(
         "--model", [request](const std::string& name) { request->set_model(name); },
         "The model; default: the one there is")
      ->type_name("NAME");
  app->add_option_function<std::string>(
         "--request-id", [request](const std::string& id) { request->set_request_id(id); },
         "Name of the request in the server's log")
      ->type_name("ID");
}

// An option that calls `set` with its value, or with all of them where it may be repeated; each
// time it takes one, and leaves what follows to the prompt.
template <typename Value, typename Set>
CLI::Option* Add(CLI::App* app, const char* name, const char* type, const char* help, Set set) {
  return app->add_option_function<Value>(name, set, help)->type_name(type)->allow_extra_args(false);
}

void AddSampling(CLI::App* app, v1::GenerateRequest* request) {
  auto* group = app->add_option_group("Sampling");
  const auto sampling = [request] { return request->mutable_sampling(); };
  Add<float>(group, "--temperature", "X", "0: greedy",
             [sampling](float x) { sampling()->set_temperature(x); });
  Add<uint32_t>(group, "--top-k", "N", "Of the N most likely tokens; 0: of all",
                [sampling](uint32_t n) { sampling()->set_top_k(n); });
  Add<float>(group, "--top-p", "X", "Of the fewest tokens that have probability X together",
             [sampling](float x) { sampling()->set_top_p(x); });
  Add<float>(group, "--min-p", "X", "Of tokens at least X times as likely as the likeliest",
             [sampling](float x) { sampling()->set_min_p(x); });
  Add<float>(group, "--typical-p", "X", "Of the most typical tokens of probability X together",
             [sampling](float x) { sampling()->set_typical_p(x); });
  Add<float>(group, "--repetition-penalty", "X", "Of tokens seen before; 1: none",
             [sampling](float x) { sampling()->set_repetition_penalty(x); });
  Add<int32_t>(group, "--repetition-window", "TOKENS", "How far that looks back; -1: everything",
               [sampling](int32_t n) { sampling()->set_repetition_window(n); });
  Add<float>(group, "--frequency-penalty", "X", "Each time a token was generated; 0: none",
             [sampling](float x) { sampling()->set_frequency_penalty(x); });
  Add<float>(group, "--presence-penalty", "X", "Once a token was generated; 0: none",
             [sampling](float x) { sampling()->set_presence_penalty(x); });
  Add<std::vector<std::string>>(
      group, "--logit-bias", "ID=X", "Add X to the logit of token ID; may be repeated",
      [sampling](const std::vector<std::string>& items) {
        for (const std::string& item : items) {
          const std::pair<std::string, std::string> parts =
              absl::StrSplit(item, absl::MaxSplits('=', 1));
          uint32_t id = 0;
          float bias = 0;
          if (!absl::SimpleAtoi(parts.first, &id) || !absl::SimpleAtof(parts.second, &bias)) {
            throw CLI::ValidationError(absl::StrCat("'", item, "' is not ID=X"));
          }
          (*sampling()->mutable_logit_bias())[id] = bias;
        }
      });
  Add<std::vector<uint32_t>>(group, "--ban", "ID", "Never generate token ID; may be repeated",
                             [sampling](const std::vector<uint32_t>& ids) {
                               sampling()->mutable_banned_token_ids()->Add(ids.begin(), ids.end());
                             });
  Add<uint64_t>(group, "--seed", "N", "Of the draws; default: random",
                [sampling](uint64_t n) { sampling()->set_seed(n); });
}

void AddStop(CLI::App* app, v1::GenerateRequest* request) {
  auto* group = app->add_option_group("Stopping");
  const auto stop = [request] { return request->mutable_stop(); };
  Add<uint32_t>(group, "-n,--max-tokens", "N", "Output at most; default: the server's",
                [stop](uint32_t n) { stop()->set_max_tokens(n); });
  Add<uint32_t>(group, "--min-tokens", "N", "Do not end before N tokens",
                [stop](uint32_t n) { stop()->set_min_tokens(n); });
  Add<std::vector<std::string>>(group, "--stop", "TEXT", "End at TEXT; may be repeated",
                                [stop](const std::vector<std::string>& texts) {
                                  stop()->mutable_stop()->Add(texts.begin(), texts.end());
                                });
  Add<std::vector<uint32_t>>(group, "--stop-token", "ID", "End at token ID; may be repeated",
                             [stop](const std::vector<uint32_t>& ids) {
                               stop()->mutable_stop_token_ids()->Add(ids.begin(), ids.end());
                             });
  group->add_flag_callback(
      "--include-stop", [stop] { stop()->set_include_stop(true); }, "Keep the text of --stop");
  group->add_flag_callback(
      "--ignore-eos", [stop] { stop()->set_ignore_eos(true); }, "Go on where the model would end");
  Add<std::string>(
      group, "--time-limit", "TIME", "End with what there is after TIME (30s)",
      [stop](const std::string& text) { *stop()->mutable_time_limit() = ProtoDurationOf(text); });
  Add<std::string>(group, "--queue-timeout", "TIME", "Give up if not begun after TIME",
                   [request](const std::string& text) {
                     *request->mutable_queue_timeout() = ProtoDurationOf(text);
                   });
}

void AddOutput(CLI::App* app, CliOptions* options) {
  auto* group = app->add_option_group("Output");
  auto* request = &options->generate;
  const auto output = [request] { return request->mutable_output(); };
  group->add_flag("--json", options->json, "One JSON object (a GenerateResult) at the end");
  group->add_flag("-q,--quiet", options->quiet, "No progress and no summary");
  group->add_flag_callback(
      "--logprobs", [output] { output()->set_logprobs(0); },
      "Log probabilities of the tokens; seen with --json");
  group->add_flag_callback(
      "--token-ids", [output] { output()->set_return_token_ids(true); },
      "Ids of the tokens; seen with --json");
  group->add_flag_callback(
      "--show-special", [output] { output()->set_skip_special_tokens(false); },
      "Text of special tokens too");
  Add<uint32_t>(group, "--stream-interval", "N", "Tokens between two messages at least",
                [output](uint32_t n) { output()->set_stream_interval(n); });
}

void AddPolicy(CLI::App* app, v1::GenerateRequest* request) {
  auto* group = app->add_option_group("Precision of the cache");
  const auto policy = [request] { return request->mutable_kv_policy(); };
  Add<std::string>(group, "--preset", "NAME",
                   "exact (all F16), balanced (the server's windows) or compact (fewest bits)",
                   [policy](const std::string& name) {
                     v1::KvPolicy::Preset preset;
                     const std::string full = absl::StrCat("PRESET_", absl::AsciiStrToUpper(name));
                     if (!v1::KvPolicy::Preset_Parse(full, &preset)) {
                       throw CLI::ValidationError(absl::StrCat("'", name, "' is not a preset"));
                     }
                     policy()->set_preset(preset);
                   });
  Add<std::string>(group, "--min-format", "NAME", "Read nothing below f16, int8, int4 or int2",
                   [policy](const std::string& name) {
                     v1::KvFormat format;
                     const std::string full =
                         absl::StrCat("KV_FORMAT_", absl::AsciiStrToUpper(name));
                     if (!v1::KvFormat_Parse(full, &format)) {
                       throw CLI::ValidationError(absl::StrCat("'", name, "' is not a format"));
                     }
                     policy()->set_min_format(format);
                   });
  Add<uint32_t>(group, "--sink-tokens", "N", "First tokens that stay F16",
                [policy](uint32_t n) { policy()->set_sink_tokens(n); });
  Add<uint32_t>(group, "--recent-tokens", "N", "Latest tokens that are F16",
                [policy](uint32_t n) { policy()->set_recent_tokens(n); });
  group->add_flag_callback(
      "--no-cold", [policy] { policy()->set_allow_cold(false); }, "Nothing goes to disk");
}

void AddSecurity(CLI::App* app, ClientSecurity* security) {
  auto* group = app->add_option_group("Security");
  group->add_flag("--tls", security->tls, "Use TLS, trusting the system's authorities");
  const auto file = [group](const char* name, std::string* path, const char* help) {
    return group->add_option(name, *path, help)->type_name("FILE");
  };
  file("--tls-ca", &security->tls_ca, "Use TLS, trusting the authorities in FILE");
  auto* cert = file("--tls-cert", &security->tls_cert, "This client's certificate, for mutual TLS");
  auto* key = file("--tls-key", &security->tls_key, "Its private key");
  cert->needs(key);
  key->needs(cert);
  group->add_option("--tls-name", security->tls_name, "The name the server's certificate has")
      ->type_name("NAME");
  file("--token-file", &security->token_file, "Send the first token of FILE along");
  group->add_flag("--plaintext-token", security->plaintext_token,
                  "Send it to another machine without TLS too");
}

void AddTimeout(CLI::App* app, CliOptions* options) {
  Add<std::string>(app, "--timeout", "TIME", "Fail after TIME (30s)",
                   [options](const std::string& text) { options->timeout = DurationOf(text); });
}

void AddTokenize(CLI::App* app, CliOptions* options) {
  auto* request = &options->tokenize;
  app->add_option_function<std::string>(
      "TEXT", [request](const std::string& text) { request->set_text(text); },
      "The text; without it, and without -f, standard input");
  app->add_option("-f,--file", options->input_file, "Read the text from FILE; -: standard input")
      ->type_name("FILE");
  Add<std::string>(app, "--model", "NAME", "The model; default: the one there is",
                   [request](const std::string& name) { request->set_model(name); });
  app->add_flag_callback(
      "--no-special", [request] { request->set_add_special(false); }, "Do not add BOS");
  app->add_flag_callback(
      "--parse-special", [request] { request->set_parse_special(true); },
      "Read text like <|im_end|> as that token");
  app->add_flag("--json", options->json, "One JSON object (a TokenizeResponse)");
}

void AddTop(CLI::App* app, CliOptions* options) {
  app->add_flag("--once", options->once, "One report, taken after one interval, and no more");
  app->add_flag("--json", options->json, "Reports as JSON objects (CacheStats), one a line");
  Add<std::string>(app, "--interval", "TIME", "Between two reports, 100ms to 1m; default: 1s",
                   [options](const std::string& text) { options->interval = DurationOf(text); });
}

// The input must come from one place.
absl::Status SettleInput(bool given, CliOptions* options) {
  if (given && !options->input_file.empty()) {
    return absl::InvalidArgumentError("-f: the input was already given as an argument");
  }
  if (!given && options->input_file.empty()) options->input_file = "-";
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CliOptions> ParseCommandLine(const std::vector<std::string>& arguments,
                                            const std::string& default_server) {
  CliOptions options;
  if (!default_server.empty()) options.server = default_server;
  CLI::App app("Talks to a strata-server.", "strata");
  app.footer(kFooter);
  app.require_subcommand(1);
  app.fallthrough();
  app.add_option("--server", options.server, "The server's address")
      ->type_name("HOST:PORT")
      ->capture_default_str();
  AddSecurity(&app, &options.security);

  CLI::App* generate = app.add_subcommand("generate", "Continue a prompt; streams the text");
  AddInput(generate, &options);
  AddSampling(generate, &options.generate);
  AddStop(generate, &options.generate);
  AddPolicy(generate, &options.generate);
  AddOutput(generate, &options);
  CLI::App* tokenize = app.add_subcommand("tokenize", "Show the tokens of a text");
  AddTokenize(tokenize, &options);
  CLI::App* stats = app.add_subcommand("stats", "Show what the cache holds, tier by tier");
  stats->add_flag("--json", options.json, "One JSON object (a CacheStats)");
  CLI::App* top = app.add_subcommand(
      "top", "Watch tiers, links, speed and health; a full screen on a terminal, q quits");
  AddTop(top, &options);
  CLI::App* info = app.add_subcommand("info", "Show the server and its models");
  info->add_flag("--json", options.json, "One JSON object");
  CLI::App* plan =
      app.add_subcommand("plan", "Plan a server's tiers and memory; see 'strata plan --help'");
  for (CLI::App* command : {generate, tokenize, stats, info}) AddTimeout(command, &options);

  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // as CLI11 takes them
  try {
    app.parse(std::move(reversed));
  } catch (const CLI::CallForHelp&) {
    options.help = app.help();
    return options;
  } catch (const CLI::ParseError& error) {
    return absl::InvalidArgumentError(error.what());
  }
  if (plan->parsed()) {
    return absl::InvalidArgumentError("plan comes first: strata plan [OPTION]...");
  }
  absl::Status status;
  if (generate->parsed()) {
    options.command = Command::kGenerate;
    const bool ids = options.generate.input_case() == v1::GenerateRequest::kTokenIds;
    if (ids && generate->count("PROMPT") > 0) {
      return absl::InvalidArgumentError("--ids: the prompt was already given as an argument");
    }
    status = SettleInput(ids || generate->count("PROMPT") > 0, &options);
  } else if (tokenize->parsed()) {
    options.command = Command::kTokenize;
    status = SettleInput(tokenize->count("TEXT") > 0, &options);
  } else {
    options.command = stats->parsed() ? Command::kStats
                      : top->parsed() ? Command::kTop
                                      : Command::kInfo;
  }
  if (!status.ok()) return status;
  return options;
}

}  // namespace strata::cli
