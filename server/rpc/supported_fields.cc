#include "server/rpc/supported_fields.h"

#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "google/protobuf/unknown_field_set.h"
#include "server/rpc/errors.h"
#include "strata/v1/inference.pb.h"

namespace strata::rpc {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// Which values of a field are served.
enum class Served { kAll, kZero, kAtMostOne, kRawOnly };

// By full name within strata.v1. A message field's own fields are checked as well.
const absl::flat_hash_map<absl::string_view, Served>& ServedFields() {
  static const auto& fields = *new absl::flat_hash_map<absl::string_view, Served>{
      {"GenerateRequest.request_id", Served::kAll},
      {"GenerateRequest.model", Served::kAll},
      {"GenerateRequest.text", Served::kAll},
      {"GenerateRequest.token_ids", Served::kAll},
      {"GenerateRequest.sampling", Served::kAll},
      {"GenerateRequest.stop", Served::kAll},
      {"GenerateRequest.output", Served::kAll},
      {"GenerateRequest.cache", Served::kAll},
      {"GenerateRequest.kv_policy", Served::kAll},
      {"GenerateRequest.priority", Served::kZero},
      {"GenerateRequest.queue_timeout", Served::kAll},
      {"GenerateRequest.truncate_prompt", Served::kZero},
      {"TokenIds.ids", Served::kAll},
      {"SamplingParams.temperature", Served::kAll},
      {"SamplingParams.top_k", Served::kAll},
      {"SamplingParams.top_p", Served::kAll},
      {"SamplingParams.min_p", Served::kAll},
      {"SamplingParams.typical_p", Served::kAll},
      {"SamplingParams.repetition_penalty", Served::kAll},
      {"SamplingParams.repetition_window", Served::kAll},
      {"SamplingParams.frequency_penalty", Served::kAll},
      {"SamplingParams.presence_penalty", Served::kAll},
      {"SamplingParams.logit_bias", Served::kAll},
      {"SamplingParams.seed", Served::kAll},
      {"SamplingParams.n", Served::kAtMostOne},
      {"SamplingParams.banned_token_ids", Served::kAll},
      {"StopParams.max_tokens", Served::kAll},
      {"StopParams.min_tokens", Served::kAll},
      {"StopParams.stop", Served::kAll},
      {"StopParams.stop_token_ids", Served::kAll},
      {"StopParams.include_stop", Served::kAll},
      {"StopParams.ignore_eos", Served::kAll},
      {"StopParams.time_limit", Served::kAll},
      {"OutputParams.logprobs", Served::kZero},
      {"OutputParams.logprobs_mode", Served::kRawOnly},
      {"OutputParams.return_token_ids", Served::kAll},
      {"OutputParams.skip_special_tokens", Served::kAll},
      {"OutputParams.detokenize", Served::kAll},
      {"OutputParams.stream_interval", Served::kAll},
      {"OutputParams.cache_stats", Served::kAll},
      {"OutputParams.progress", Served::kAll},
      {"CacheParams.reuse_prefix", Served::kZero},
      {"CacheParams.store_prefix", Served::kZero},
      {"KvPolicy.preset", Served::kAll},
      {"KvPolicy.min_format", Served::kAll},
      {"KvPolicy.sink_tokens", Served::kAll},
      {"KvPolicy.recent_tokens", Served::kAll},
      {"KvPolicy.pin_prompt_hot", Served::kZero},
      {"KvPolicy.allow_cold", Served::kAll},
      {"TokenizeRequest.model", Served::kAll},
      {"TokenizeRequest.text", Served::kAll},
      {"TokenizeRequest.add_special", Served::kAll},
      {"TokenizeRequest.parse_special", Served::kAll},
      {"DetokenizeRequest.model", Served::kAll},
      {"DetokenizeRequest.ids", Served::kAll},
      {"DetokenizeRequest.skip_special", Served::kAll},
  };
  return fields;
}

// The value of a scalar field as a number; 0 and false are the default.
uint64_t ScalarValue(const Message& message, const FieldDescriptor* field) {
  const auto* reflection = message.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection->GetBool(message, field) ? 1 : 0;
    case FieldDescriptor::CPPTYPE_INT32:
      return static_cast<uint64_t>(reflection->GetInt32(message, field));
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection->GetUInt32(message, field);
    case FieldDescriptor::CPPTYPE_ENUM:
      return static_cast<uint64_t>(reflection->GetEnumValue(message, field));
    default:
      return 1;
  }
}

absl::Status CheckValue(const Message& message, const FieldDescriptor* field,
                        const std::string& path, Served served) {
  if (served == Served::kAll) return absl::OkStatus();
  const uint64_t value = ScalarValue(message, field);
  switch (served) {
    case Served::kAll:
      return absl::OkStatus();
    case Served::kZero:
      return value == 0 ? absl::OkStatus() : UnsupportedField(path, "above 0 or true");
    case Served::kAtMostOne:
      return value <= 1 ? absl::OkStatus() : UnsupportedField(path, "above 1");
    case Served::kRawOnly:
      return value <= v1::OutputParams::LOGPROBS_MODE_RAW
                 ? absl::OkStatus()
                 : UnsupportedField(path, "other than RAW");
  }
  return absl::OkStatus();
}

absl::Status CheckMessage(const Message& message, const std::string& prefix);

absl::Status CheckField(const Message& message, const FieldDescriptor* field,
                        const std::string& path) {
  const std::string key = absl::StrCat(field->containing_type()->name(), ".", field->name());
  const auto served = ServedFields().find(key);
  if (served == ServedFields().end()) return UnsupportedField(path, "");
  const bool ours = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE &&
                    !field->is_repeated() &&
                    field->message_type()->file() == v1::GenerateRequest::descriptor()->file();
  if (ours) return CheckMessage(message.GetReflection()->GetMessage(message, field), path + ".");
  return CheckValue(message, field, path, served->second);
}

absl::Status CheckMessage(const Message& message, const std::string& prefix) {
  const auto* reflection = message.GetReflection();
  const auto& unknown = reflection->GetUnknownFields(message);
  if (unknown.field_count() > 0) {
    return UnsupportedField(absl::StrCat("field number ", unknown.field(0).number(), " of ",
                                         message.GetDescriptor()->full_name()),
                            "");
  }
  std::vector<const FieldDescriptor*> fields;
  reflection->ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    absl::Status status = CheckField(message, field, prefix + field->name());
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckSupported(const Message& request) { return CheckMessage(request, ""); }

}  // namespace strata::rpc
