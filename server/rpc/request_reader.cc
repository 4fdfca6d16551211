#include "server/rpc/request_reader.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <random>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "google/protobuf/descriptor.h"
#include "server/rpc/errors.h"
#include "server/rpc/supported_fields.h"

namespace strata::rpc {
namespace {

constexpr size_t kRequestIdMax = 128;  // bytes
constexpr int kStopStringsMax = 64;
constexpr size_t kStopStringMax = 1024;  // bytes: the text that may be held back
constexpr uint32_t kStreamIntervalMax = 1 << 16;
constexpr int64_t kDurationMax = 366 * 24 * 3600;  // seconds

uint64_t RandomBits() {
  thread_local std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

int32_t ClampToInt32(uint32_t value) {
  return static_cast<int32_t>(std::min<uint32_t>(value, std::numeric_limits<int32_t>::max()));
}

// Reads one message, noting what is wrong with it.
class Reader {
 public:
  Reader(const ServedModel& model, const RequestDefaults& defaults)
      : model_(model), defaults_(defaults) {}

  void ReadId(const v1::GenerateRequest& message, Request* request);
  void ReadInput(const v1::GenerateRequest& message, ParsedRequest* parsed);
  void ReadSampling(const v1::SamplingParams& message, SamplingParams* sampling);
  void ReadStop(const v1::StopParams& message, StopCriteria* stop);
  void ReadOutput(const v1::OutputParams& message, ParsedRequest* parsed);
  void ReadPolicy(const v1::KvPolicy& message, PolicyRequest* policy);
  std::optional<std::chrono::nanoseconds> ReadDuration(const std::string& field,
                                                       const google::protobuf::Duration& message);
  absl::Status ToStatus() const { return violations_.ToStatus(); }

 private:
  void CheckToken(const std::string& field, uint32_t id);

  const ServedModel& model_;
  const RequestDefaults& defaults_;
  FieldViolations violations_;
};

void Reader::CheckToken(const std::string& field, uint32_t id) {
  if (id >= static_cast<uint32_t>(model_.vocab_size)) {
    violations_.Add(field, absl::StrCat("token id ", id, " is not below the vocabulary's size, ",
                                        model_.vocab_size));
  }
}

void Reader::ReadId(const v1::GenerateRequest& message, Request* request) {
  const std::string& id = message.request_id();
  const bool printable = std::all_of(id.begin(), id.end(), absl::ascii_isprint);
  if (id.size() > kRequestIdMax || !printable) {
    violations_.Add("request_id",
                    absl::StrCat("must be at most ", kRequestIdMax, " printable ASCII characters"));
  }
  request->id = id.empty() ? absl::StrFormat("gen-%016x", RandomBits()) : id;
}

void Reader::ReadInput(const v1::GenerateRequest& message, ParsedRequest* parsed) {
  if (message.has_text()) {
    parsed->text = message.text();
    return;
  }
  if (!message.has_token_ids()) {
    violations_.Add("input", "one of text and token_ids must be set");
    return;
  }
  const auto& ids = message.token_ids().ids();
  if (ids.empty()) violations_.Add("token_ids.ids", "must not be empty");
  const int wrong = violations_.empty() ? ids.size() : 0;
  parsed->request.prompt.reserve(static_cast<size_t>(wrong));
  for (int i = 0; i < ids.size(); ++i) {
    if (ids[i] >= static_cast<uint32_t>(model_.vocab_size)) {
      CheckToken(absl::StrCat("token_ids.ids[", i, "]"), ids[i]);
      return;  // one is enough: there may be millions
    }
    parsed->request.prompt.push_back(static_cast<int32_t>(ids[i]));
  }
}

void Reader::ReadSampling(const v1::SamplingParams& message, SamplingParams* sampling) {
  sampling->temperature = message.has_temperature() ? message.temperature() : defaults_.temperature;
  if (message.has_top_k()) sampling->top_k = message.top_k();
  if (message.has_top_p()) sampling->top_p = message.top_p();
  if (message.has_min_p()) sampling->min_p = message.min_p();
  if (message.has_typical_p()) sampling->typical_p = message.typical_p();
  if (message.has_repetition_penalty()) sampling->repetition_penalty = message.repetition_penalty();
  if (message.has_repetition_window()) sampling->repetition_window = message.repetition_window();
  if (message.has_frequency_penalty()) sampling->frequency_penalty = message.frequency_penalty();
  if (message.has_presence_penalty()) sampling->presence_penalty = message.presence_penalty();
  for (const auto& [id, bias] : message.logit_bias()) sampling->logit_bias[id] = bias;
  sampling->banned_token_ids.assign(message.banned_token_ids().begin(),
                                    message.banned_token_ids().end());
  sampling->seed = message.has_seed() ? message.seed() : RandomBits();
  if (message.has_n() && message.n() == 0) violations_.Add("sampling.n", "0 is not at least 1");

  const absl::Status status = sampling->Validate(model_.vocab_size);
  if (status.ok()) return;
  // The sampler's messages begin with the name of the field, which is the proto's name too.
  const std::string text(status.message());
  const std::string name = text.substr(0, text.find_first_of(" :[="));
  const bool named = v1::SamplingParams::descriptor()->FindFieldByName(name) != nullptr;
  violations_.Add(named ? absl::StrCat("sampling.", name) : "sampling", text);
}

void Reader::ReadStop(const v1::StopParams& message, StopCriteria* stop) {
  if (message.has_max_tokens() && message.max_tokens() == 0) {
    violations_.Add("stop.max_tokens", "0 is not at least 1");
  }
  stop->max_tokens =
      message.has_max_tokens() ? ClampToInt32(message.max_tokens()) : defaults_.max_tokens;
  stop->min_tokens = ClampToInt32(message.min_tokens());
  if (stop->min_tokens > stop->max_tokens) {
    violations_.Add("stop.min_tokens",
                    absl::StrCat(stop->min_tokens, " is above max_tokens, ", stop->max_tokens));
  }
  if (message.stop_size() > kStopStringsMax) {
    violations_.Add("stop.stop",
                    absl::StrCat(message.stop_size(), " strings are more than ", kStopStringsMax));
  }
  for (const std::string& text : message.stop()) {
    if (!text.empty() && text.size() <= kStopStringMax) continue;
    violations_.Add("stop.stop", absl::StrCat("a string of ", text.size(), " bytes; 1 to ",
                                              kStopStringMax, " are allowed"));
  }
  stop->stop.assign(message.stop().begin(), message.stop().end());
  if (message.stop_token_ids_size() > model_.vocab_size) {
    violations_.Add("stop.stop_token_ids",
                    absl::StrCat(message.stop_token_ids_size(), " ids are more than the vocabulary",
                                 " has, ", model_.vocab_size));
  }
  for (const uint32_t id : message.stop_token_ids()) {
    CheckToken("stop.stop_token_ids", id);
    stop->stop_token_ids.push_back(static_cast<int32_t>(id));
  }
  stop->include_stop = message.include_stop();
  stop->ignore_eos = message.ignore_eos();
  if (message.has_time_limit()) {
    stop->time_limit = ReadDuration("stop.time_limit", message.time_limit());
  }
}

void Reader::ReadOutput(const v1::OutputParams& message, ParsedRequest* parsed) {
  parsed->output.logprobs = parsed->request.logprobs = message.has_logprobs();
  parsed->output.return_token_ids = message.return_token_ids();
  if (message.has_cache_stats()) parsed->output.cache_stats = message.cache_stats();
  parsed->output.progress = message.progress();
  Request& request = parsed->request;
  if (message.has_skip_special_tokens()) {
    request.skip_special_tokens = message.skip_special_tokens();
  }
  if (message.has_detokenize()) request.detokenize = message.detokenize();
  if (!request.detokenize && !parsed->request.stop.stop.empty()) {
    violations_.Add("output.detokenize", "must not be false where stop strings are to be found");
  }
  if (!message.has_stream_interval()) return;
  if (message.stream_interval() == 0 || message.stream_interval() > kStreamIntervalMax) {
    violations_.Add("output.stream_interval", absl::StrCat(message.stream_interval(),
                                                           " is not in 1 to ", kStreamIntervalMax));
    return;
  }
  request.stream_interval = static_cast<int32_t>(message.stream_interval());
}

void Reader::ReadPolicy(const v1::KvPolicy& message, PolicyRequest* policy) {
  switch (message.preset()) {
    case v1::KvPolicy::PRESET_UNSPECIFIED:
      break;
    case v1::KvPolicy::PRESET_EXACT:
      policy->preset = PolicyPreset::kExact;
      break;
    case v1::KvPolicy::PRESET_BALANCED:
      policy->preset = PolicyPreset::kBalanced;
      break;
    case v1::KvPolicy::PRESET_COMPACT:
      policy->preset = PolicyPreset::kCompact;
      break;
    default:
      violations_.Add("kv_policy.preset",
                      absl::StrCat(static_cast<int>(message.preset()), " is not a preset"));
  }
  switch (message.min_format()) {
    case v1::KV_FORMAT_UNSPECIFIED:
      break;
    case v1::KV_FORMAT_F16:
    case v1::KV_FORMAT_INT8:  // no tier has 8 bits: the next better format keeps the promise
      policy->min_format = KvKind::kF16;
      break;
    case v1::KV_FORMAT_INT4:
      policy->min_format = KvKind::kI4;
      break;
    case v1::KV_FORMAT_INT2:
      policy->min_format = KvKind::kI2;
      break;
    default:
      violations_.Add("kv_policy.min_format",
                      absl::StrCat(static_cast<int>(message.min_format()), " is not a format"));
  }
  const auto tokens = [](uint32_t value) {
    return ClampToInt32(std::min<uint32_t>(value, PositionalPolicy::kUnlimited));
  };
  if (message.has_sink_tokens()) policy->sink_tokens = tokens(message.sink_tokens());
  if (message.has_recent_tokens()) policy->recent_tokens = tokens(message.recent_tokens());
  if (message.has_allow_cold()) policy->allow_cold = message.allow_cold();
}

std::optional<std::chrono::nanoseconds> Reader::ReadDuration(
    const std::string& field, const google::protobuf::Duration& message) {
  const bool in_range = message.seconds() >= 0 && message.seconds() <= kDurationMax &&
                        message.nanos() >= 0 && message.nanos() < 1000000000;
  if (!in_range || (message.seconds() == 0 && message.nanos() == 0)) {
    violations_.Add(field,
                    absl::StrCat(message.seconds(), " s and ", message.nanos(),
                                 " ns is not a time above 0 and of at most ", kDurationMax, " s"));
    return std::nullopt;
  }
  return std::chrono::seconds(message.seconds()) + std::chrono::nanoseconds(message.nanos());
}

}  // namespace

absl::StatusOr<ParsedRequest> ReadRequest(const v1::GenerateRequest& message,
                                          const RequestDefaults& defaults, const ServedModel& model,
                                          Clock::TimePoint now) {
  STRATA_RETURN_IF_ERROR(CheckSupported(message));
  ParsedRequest parsed;
  Reader reader(model, defaults);
  reader.ReadId(message, &parsed.request);
  reader.ReadInput(message, &parsed);
  reader.ReadSampling(message.sampling(), &parsed.request.sampling);
  reader.ReadStop(message.stop(), &parsed.request.stop);
  reader.ReadOutput(message.output(), &parsed);
  reader.ReadPolicy(message.kv_policy(), &parsed.request.policy);
  parsed.request.received = now;
  if (message.has_queue_timeout()) {
    const auto timeout = reader.ReadDuration("queue_timeout", message.queue_timeout());
    if (timeout.has_value()) parsed.request.queue_deadline = now + *timeout;
  }
  STRATA_RETURN_IF_ERROR(reader.ToStatus());
  if (parsed.text.has_value()) {
    STRATA_RETURN_IF_ERROR(CheckTextLength("text", parsed.text->size(), model));
  } else {
    const auto tokens = static_cast<int64_t>(parsed.request.prompt.size());
    STRATA_RETURN_IF_ERROR(CheckPromptLength("token_ids", tokens, model));
  }
  return parsed;
}

absl::StatusOr<std::vector<int32_t>> TokenizePrompt(const std::string& text,
                                                    const ServedModel& model) {
  STRATA_ASSIGN_OR_RETURN(const std::vector<TokenSpan> spans,
                          model.tokenizer->Encode(text, EncodeOptions{}));
  if (spans.empty()) return InvalidField("text", "is empty, and the model adds no token to it");
  STRATA_RETURN_IF_ERROR(CheckPromptLength("text", static_cast<int64_t>(spans.size()), model));
  std::vector<int32_t> ids;
  ids.reserve(spans.size());
  for (const TokenSpan& span : spans) ids.push_back(span.id);
  return ids;
}

absl::Status CheckPromptLength(absl::string_view field, int64_t tokens, const ServedModel& model) {
  if (tokens < model.context_length) return absl::OkStatus();
  return ContextLengthExceeded(field, tokens, model.context_length);
}

absl::Status CheckTextLength(absl::string_view field, size_t bytes, const ServedModel& model) {
  const size_t most = static_cast<size_t>(model.context_length) * model.longest_token;
  if (bytes <= most) return absl::OkStatus();
  return ContextLengthExceeded(field, -1, model.context_length);
}

}  // namespace strata::rpc
