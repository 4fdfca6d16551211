#include "server/rpc/request_reader.h"

#include <functional>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "google/protobuf/unknown_field_set.h"
#include "google/rpc/error_details.pb.h"
#include "gtest/gtest.h"
#include "server/rpc/errors.h"
#include "server/rpc/supported_fields.h"
#include "tests/server/fake_engine.h"

namespace strata::rpc {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using testing::Contains;
using testing::HasSubstr;

// Everything a parsed request says, as text: two requests that are treated alike have the same.
std::string Fingerprint(const ParsedRequest& parsed) {
  const Request& r = parsed.request;
  const auto optional = [](const auto& value) {
    return value.has_value() ? absl::StrCat(*value) : std::string("-");
  };
  const auto time = [](const auto& value) {
    return value.has_value() ? absl::StrCat(value->time_since_epoch().count()) : std::string("-");
  };
  const SamplingParams& s = r.sampling;
  std::string text = absl::StrCat(
      r.id, "|", absl::StrJoin(r.prompt, ","), "|", parsed.text.value_or("-"), "|", s.temperature,
      "|", s.top_k, "|", s.top_p, "|", s.min_p, "|", s.typical_p, "|", s.repetition_penalty, "|",
      s.repetition_window, "|", s.frequency_penalty, "|", s.presence_penalty, "|", s.seed, "|",
      absl::StrJoin(s.logit_bias, ",", absl::PairFormatter("=")));
  absl::StrAppend(&text, "|", absl::StrJoin(s.banned_token_ids, ","), "|", r.stop.max_tokens, "|",
                  r.stop.min_tokens, "|", absl::StrJoin(r.stop.stop, ","), "|",
                  absl::StrJoin(r.stop.stop_token_ids, ","), "|", r.stop.include_stop, "|",
                  r.stop.ignore_eos, "|",
                  r.stop.time_limit.has_value() ? r.stop.time_limit->count() : -1, "|",
                  static_cast<int>(r.policy.preset), "|",
                  r.policy.min_format.has_value() ? static_cast<int>(*r.policy.min_format) : -1);
  absl::StrAppend(&text, "|", optional(r.policy.sink_tokens), "|", optional(r.policy.recent_tokens),
                  "|", optional(r.policy.allow_cold), "|", r.skip_special_tokens, "|", r.detokenize,
                  "|", r.stream_interval, "|", time(r.queue_deadline), "|", parsed.output.logprobs,
                  parsed.output.return_token_ids, parsed.output.cache_stats,
                  parsed.output.progress);
  return text;
}

class RequestReaderTest : public testing::Test {
 protected:
  absl::StatusOr<ParsedRequest> Read(const v1::GenerateRequest& request) {
    return ReadRequest(request, RequestDefaults{}, model_, Clock::TimePoint());
  }
  // A request that is valid, with everything that would be random given.
  static v1::GenerateRequest Base() {
    v1::GenerateRequest request;
    request.set_request_id("id");
    request.mutable_token_ids()->add_ids(5);
    request.mutable_sampling()->set_seed(7);
    return request;
  }

  FakeEngine engine_;
  ByteTokenizer tokenizer_;
  ServedModel model_ = FakeModel(&tokenizer_, &engine_);
};

// Sets one scalar, or adds one element, to a valid value that is not the default.
void SetScalar(Message* message, const FieldDescriptor* field) {
  const auto* reflection = message->GetReflection();
  const bool repeated = field->is_repeated();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL: {
      // Where absent means true, the other value is false.
      static const std::set<std::string> kTrueByDefault = {"skip_special_tokens", "detokenize",
                                                           "cache_stats"};
      reflection->SetBool(message, field, kTrueByDefault.count(field->name()) == 0);
      return;
    }
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection->SetInt32(message, field, 2);
    case FieldDescriptor::CPPTYPE_UINT32:
      return repeated ? reflection->AddUInt32(message, field, 2)
                      : reflection->SetUInt32(message, field, 2);
    case FieldDescriptor::CPPTYPE_UINT64:
      return reflection->SetUInt64(message, field, 2);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return reflection->SetFloat(message, field, 0.5f);
    case FieldDescriptor::CPPTYPE_ENUM:
      return reflection->SetEnumValue(message, field, 2);
    case FieldDescriptor::CPPTYPE_STRING:
      return repeated ? reflection->AddString(message, field, "x")
                      : reflection->SetString(message, field, "x");
    default:
      FAIL() << field->full_name() << " has a type that this test does not know";
  }
}

struct Leaf {
  std::string path;
  v1::GenerateRequest request;  // Base() with that field set
};

// One request for every field of the tree that has a value of its own.
void Collect(const google::protobuf::Descriptor* type, const std::string& prefix,
             const std::function<Message*(v1::GenerateRequest*)>& get,
             const v1::GenerateRequest& base, std::vector<Leaf>* leaves) {
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* field = type->field(i);
    const std::string path = prefix + field->name();
    const bool message = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    const bool ours = message && field->message_type()->file() == type->file();
    if (ours && !field->is_repeated() && !field->is_map()) {
      const auto nested = [get, field](v1::GenerateRequest* request) {
        Message* parent = get(request);
        return parent->GetReflection()->MutableMessage(parent, field);
      };
      Collect(field->message_type(), path + ".", nested, base, leaves);
      continue;
    }
    Leaf leaf = {path, base};
    Message* target = get(&leaf.request);
    if (field->is_map()) {
      (*leaf.request.mutable_sampling()->mutable_logit_bias())[3] = 0.5f;
    } else if (message && field->is_repeated()) {
      target->GetReflection()->AddMessage(target, field);
    } else if (message) {
      Message* duration = target->GetReflection()->MutableMessage(target, field);
      duration->GetReflection()->SetInt64(duration,
                                          duration->GetDescriptor()->FindFieldByName("seconds"), 2);
    } else {
      SetScalar(target, field);
    }
    leaves->push_back(std::move(leaf));
  }
}

TEST_F(RequestReaderTest, EveryFieldIsServedOrRefusedByName) {
  std::vector<Leaf> leaves;
  Collect(
      v1::GenerateRequest::descriptor(), "", [](v1::GenerateRequest* r) { return r; }, Base(),
      &leaves);
  ASSERT_GT(leaves.size(), 50u);
  const std::string base = Fingerprint(*Read(Base()));
  std::vector<std::string> refused;
  for (Leaf& leaf : leaves) {
    // The one model there is, and the raw distribution, are what one gets anyway.
    if (leaf.path == "model") leaf.request.set_model("fake");
    const auto parsed = Read(leaf.request);
    if (parsed.ok()) {
      if (leaf.path != "model") {
        EXPECT_NE(Fingerprint(*parsed), base) << leaf.path << " is accepted and ignored";
      }
      continue;
    }
    ASSERT_TRUE(absl::IsUnimplemented(parsed.status())) << leaf.path << ": " << parsed.status();
    // The field itself or the message that holds it.
    const std::string named(
        parsed.status().message().substr(0, parsed.status().message().find(' ')));
    EXPECT_TRUE(leaf.path == named || absl::StartsWith(leaf.path, named + "."))
        << leaf.path << ": " << named;
    refused.push_back(leaf.path);
  }
  // What is refused now. A field that becomes served leaves this list.
  EXPECT_THAT(
      refused,
      testing::UnorderedElementsAre(
          "chat.messages", "chat.tools_json", "chat.template_kwargs_json", "chat.template_override",
          "chat.add_generation_prompt", "chat.continue_final_message", "sampling.n",
          "output.logprobs", "output.prompt_logprobs", "output.logprobs_mode",
          "constraint.json_schema", "constraint.json_object", "constraint.regex", "constraint.gbnf",
          "constraint.choice.values", "constraint.compact_whitespace", "cache.session_id",
          "cache.cache_salt", "cache.reuse_prefix", "cache.store_prefix", "cache.ttl",
          "kv_policy.pin_prompt_hot", "kv_policy.warm_tokens", "priority", "truncate_prompt"));
}

TEST_F(RequestReaderTest, ValuesThatAskForNothingSpecialAreServed) {
  v1::GenerateRequest request = Base();
  request.mutable_sampling()->set_n(1);
  request.mutable_output()->set_logprobs(0);
  request.mutable_output()->set_logprobs_mode(v1::OutputParams::LOGPROBS_MODE_RAW);
  request.mutable_cache()->set_reuse_prefix(false);
  request.mutable_cache()->set_store_prefix(false);
  request.mutable_kv_policy()->set_pin_prompt_hot(false);
  request.set_priority(0);
  request.set_truncate_prompt(false);
  const auto parsed = Read(request);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_TRUE(parsed->output.logprobs);
}

TEST_F(RequestReaderTest, UnknownFieldsAreRefusedByNumber) {
  v1::GenerateRequest request = Base();
  auto* stop = request.mutable_stop();
  stop->GetReflection()->MutableUnknownFields(stop)->AddVarint(77, 1);
  const absl::Status status = Read(request).status();
  EXPECT_TRUE(absl::IsUnimplemented(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("77 of strata.v1.StopParams"));
}

TEST_F(RequestReaderTest, TokenizeAndDetokenizeAreWalkedToo) {
  v1::TokenizeRequest tokenize;
  tokenize.mutable_chat();
  EXPECT_TRUE(absl::IsUnimplemented(CheckSupported(tokenize)));
  tokenize.set_text("x");
  tokenize.set_add_special(true);
  tokenize.set_parse_special(true);
  tokenize.set_model("m");
  EXPECT_TRUE(CheckSupported(tokenize).ok());
  v1::DetokenizeRequest detokenize;
  detokenize.set_model("m");
  detokenize.add_ids(1);
  detokenize.set_skip_special(true);
  EXPECT_TRUE(CheckSupported(detokenize).ok());
}

std::vector<std::string> Violations(const absl::Status& status) {
  google::rpc::BadRequest bad_request;
  std::vector<std::string> fields;
  if (!absl::IsInvalidArgument(status) || !GetDetail(status, &bad_request)) return fields;
  for (const auto& violation : bad_request.field_violations()) fields.push_back(violation.field());
  return fields;
}

TEST_F(RequestReaderTest, AllViolationsAreToldAtOnce) {
  v1::GenerateRequest request;
  request.set_request_id("line\nbreak");
  request.mutable_token_ids()->add_ids(9999);
  request.mutable_sampling()->set_top_p(1.5f);
  request.mutable_stop()->set_max_tokens(0);
  request.mutable_stop()->add_stop("");
  request.mutable_stop()->add_stop_token_ids(9999);
  request.mutable_output()->set_stream_interval(0);
  request.mutable_queue_timeout()->set_seconds(-1);
  EXPECT_THAT(Violations(Read(request).status()),
              testing::UnorderedElementsAre("request_id", "token_ids.ids[0]", "sampling.top_p",
                                            "stop.max_tokens", "stop.stop", "stop.stop_token_ids",
                                            "output.stream_interval", "queue_timeout"));
}

TEST_F(RequestReaderTest, AnInputIsRequired) {
  EXPECT_THAT(Violations(Read(v1::GenerateRequest()).status()), Contains("input"));
  v1::GenerateRequest empty;
  empty.mutable_token_ids();
  EXPECT_THAT(Violations(Read(empty).status()), Contains("token_ids.ids"));
}

TEST_F(RequestReaderTest, EnumsOutOfRangeAreRefused) {
  v1::GenerateRequest request = Base();
  request.mutable_kv_policy()->set_preset(static_cast<v1::KvPolicy::Preset>(9));
  request.mutable_kv_policy()->set_min_format(static_cast<v1::KvFormat>(9));
  EXPECT_THAT(Violations(Read(request).status()),
              testing::UnorderedElementsAre("kv_policy.preset", "kv_policy.min_format"));
}

TEST_F(RequestReaderTest, WhatIsLeftOpenGetsDefaults) {
  v1::GenerateRequest request;
  request.set_text("hello");
  const auto first = Read(request);
  const auto second = Read(request);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->text, "hello");
  EXPECT_EQ(first->request.stop.max_tokens, RequestDefaults{}.max_tokens);
  EXPECT_EQ(first->request.sampling.temperature, 0);
  EXPECT_NE(first->request.id, second->request.id);
  EXPECT_NE(first->request.sampling.seed, second->request.sampling.seed);
  EXPECT_FALSE(first->request.queue_deadline.has_value());
}

std::string ContextReason(const absl::Status& status) {
  google::rpc::ErrorInfo info;
  return GetDetail(status, &info) ? info.reason() : "";
}

TEST_F(RequestReaderTest, APromptMustLeaveRoomForAToken) {
  v1::GenerateRequest request = Base();
  request.mutable_token_ids()->clear_ids();
  for (int i = 0; i < model_.context_length - 1; ++i) request.mutable_token_ids()->add_ids(1);
  EXPECT_TRUE(Read(request).ok());
  request.mutable_token_ids()->add_ids(1);
  const absl::Status status = Read(request).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_EQ(ContextReason(status), "CONTEXT_LENGTH_EXCEEDED");
  google::rpc::ErrorInfo info;
  ASSERT_TRUE(GetDetail(status, &info));
  EXPECT_EQ(info.metadata().at("prompt_tokens"), "100");
  EXPECT_EQ(info.metadata().at("context_length"), "100");
}

TEST_F(RequestReaderTest, ATextThatCannotFitIsNotTokenized) {
  v1::GenerateRequest request;
  const size_t most = static_cast<size_t>(model_.context_length) * model_.longest_token;
  request.set_text(std::string(most, 'x'));
  EXPECT_TRUE(Read(request).ok());
  request.set_text(std::string(most + 1, 'x'));
  EXPECT_EQ(ContextReason(Read(request).status()), "CONTEXT_LENGTH_EXCEEDED");
}

TEST_F(RequestReaderTest, TextGetsSpecialTokensFromTheTokenizerAlone) {
  const auto prompt = TokenizePrompt("<s>", model_);
  ASSERT_TRUE(prompt.ok());
  EXPECT_EQ(*prompt, (std::vector<int32_t>{ByteTokenizer::kBos, '<', 's', '>'}));
}

}  // namespace
}  // namespace strata::rpc
