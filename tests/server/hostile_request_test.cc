// Requests as no well-meaning client sends them: whatever a message holds, it is served within
// limits or refused with an answer that fits into a trailer.

#include <cmath>
#include <limits>
#include <random>
#include <string>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "gtest/gtest.h"
#include "server/engine/request_terms.h"
#include "server/rpc/request_reader.h"
#include "server/rpc/status_to_grpc.h"
#include "tests/server/fake_engine.h"

namespace strata::rpc {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// What clients take of a trailer if they are not told otherwise.
constexpr size_t kTrailerMax = 8192;

template <typename T, size_t N>
T AnyOf(const T (&values)[N], std::mt19937* random) {
  return values[(*random)() % N];
}

template <typename T>
T AnyInteger(std::mt19937* random) {
  constexpr T kMost = std::numeric_limits<T>::max();
  constexpr T kLeast = std::numeric_limits<T>::min();
  return AnyOf<T>({0, 1, 2, 64, 100, 257, 999'999'999, kMost / 2, kMost - 1, kMost, kLeast},
                  random);
}

float AnyFloat(std::mt19937* random) {
  using Limits = std::numeric_limits<float>;
  return AnyOf<float>({Limits::quiet_NaN(), Limits::infinity(), -Limits::infinity(), 0.0f, -0.0f,
                       0.5f, 1.0f, -1.0f, Limits::max(), Limits::denorm_min()},
                      random);
}

std::string AnyText(std::mt19937* random) {
  return AnyOf<std::string>({"", "x", "\n", std::string(1, '\0'), "\xC3\xB6", std::string(129, 'x'),
                             std::string(1025, 'x'), std::string(5000, '\n')},
                            random);
}

void SetOne(Message* message, const FieldDescriptor* field, std::mt19937* random) {
  const Reflection& r = *message->GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return r.SetBool(message, field, (*random)() % 2 == 0);
    case FieldDescriptor::CPPTYPE_INT32:
      return r.SetInt32(message, field, AnyInteger<int32_t>(random));
    case FieldDescriptor::CPPTYPE_UINT32:
      return r.SetUInt32(message, field, AnyInteger<uint32_t>(random));
    case FieldDescriptor::CPPTYPE_INT64:
      return r.SetInt64(message, field, AnyInteger<int64_t>(random));
    case FieldDescriptor::CPPTYPE_UINT64:
      return r.SetUInt64(message, field, AnyInteger<uint64_t>(random));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return r.SetFloat(message, field, AnyFloat(random));
    case FieldDescriptor::CPPTYPE_ENUM:
      return r.SetEnumValue(message, field, AnyOf<int>({-1, 0, 1, 2, 99}, random));
    case FieldDescriptor::CPPTYPE_STRING:
      return r.SetString(message, field, AnyText(random));
    default:
      FAIL() << field->full_name() << " has a type that this test does not know";
  }
}

void AddOne(Message* message, const FieldDescriptor* field, std::mt19937* random) {
  const Reflection& r = *message->GetReflection();
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
    r.AddString(message, field, AnyText(random));
  } else {
    ASSERT_EQ(field->cpp_type(), FieldDescriptor::CPPTYPE_UINT32) << field->full_name();
    r.AddUInt32(message, field, AnyInteger<uint32_t>(random));
  }
}

// Gives about one field in `sparsity` a value.
void Fill(Message* message, uint32_t sparsity, std::mt19937* random) {
  const auto* type = message->GetDescriptor();
  const Reflection& r = *message->GetReflection();
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* field = type->field(i);
    if ((*random)() % sparsity != 0) continue;
    const bool nested = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    if (!field->is_repeated()) {
      if (nested) {
        Fill(r.MutableMessage(message, field), sparsity, random);
      } else {
        SetOne(message, field, random);
      }
      continue;
    }
    if (nested) {
      Fill(r.AddMessage(message, field), 1, random);
      continue;
    }
    for (int count = AnyOf<int>({1, 2, 70, 300}, random); count > 0; --count) {
      AddOne(message, field, random);
    }
  }
}

size_t TrailerBytes(const absl::Status& status) {
  const grpc::Status converted = ToGrpcStatus(status);
  return converted.error_message().size() + converted.error_details().size() * 4 / 3;  // base64
}

class HostileRequestTest : public testing::Test {
 protected:
  absl::StatusOr<ParsedRequest> Read(const v1::GenerateRequest& request) {
    return ReadRequest(request, RequestDefaults{}, model_, Clock::TimePoint());
  }

  FakeEngine engine_;
  ByteTokenizer tokenizer_;
  ServedModel model_ = FakeModel(&tokenizer_, &engine_);
  const TermsContext terms_{&tokenizer_, model_.vocab_size, model_.context_length,
                            &engine_.tier_options(), engine_.default_policy()};
};

TEST_F(HostileRequestTest, AnyMessageIsServedWithinLimitsOrRefusedInBrief) {
#ifdef __SANITIZE_THREAD__
  // The headers lay out a map differently than the library, which has no sanitizer, was built for.
  GTEST_SKIP() << "reflection on a map needs a protobuf library built with ThreadSanitizer";
#endif
  std::mt19937 random(20250105);
  int served = 0;
  int refused = 0;
  for (int round = 0; round < 2000; ++round) {
    v1::GenerateRequest request;
    // Dense ones are refused at the first field that is not served; so sparse ones too, with input.
    const uint32_t sparsity = AnyOf<uint32_t>({2, 8, 16}, &random);
    Fill(&request, sparsity, &random);
    if (sparsity > 2) request.mutable_token_ids()->add_ids(7);
    const auto parsed = Read(request);
    if (!parsed.ok()) {
      ++refused;
      EXPECT_TRUE(absl::IsInvalidArgument(parsed.status()) ||
                  absl::IsUnimplemented(parsed.status()))
          << parsed.status();
      ASSERT_LT(TrailerBytes(parsed.status()), kTrailerMax) << parsed.status();
      continue;
    }
    if (parsed->text.has_value()) continue;  // what tokenizers make of it is their tests' matter
    const auto terms = SettleTerms(parsed->request, terms_);
    if (!terms.ok()) continue;
    ++served;
    ASSERT_GE(terms->max_tokens, 1);
    ASSERT_LE(terms->stored_tokens, model_.context_length);
    ASSERT_GE(terms->policy.sink_blocks, 1);
    ASSERT_GE(terms->policy.hot_blocks, 1);
    ASSERT_GE(terms->policy.warm_blocks, 0);
  }
  // Both must occur often, or the loop tests nothing.
  EXPECT_GT(served, 200);
  EXPECT_GT(refused, 200);
}

TEST_F(HostileRequestTest, ManyWrongElementsAreToldInBrief) {
  v1::GenerateRequest request;
  request.mutable_token_ids()->add_ids(7);
  for (int i = 0; i < 100'000; ++i) {
    request.mutable_stop()->add_stop("");
    request.mutable_stop()->add_stop_token_ids(1 << 20);
  }
  const absl::Status status = Read(request).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_LT(TrailerBytes(status), kTrailerMax);
  EXPECT_NE(status.message().find(" more"), absl::string_view::npos) << status;
}

TEST_F(HostileRequestTest, StopIdsAreAtMostAVocabulary) {
  v1::GenerateRequest request;
  request.mutable_token_ids()->add_ids(7);
  for (int i = 0; i < model_.vocab_size; ++i) request.mutable_stop()->add_stop_token_ids(3);
  EXPECT_TRUE(Read(request).ok());
  request.mutable_stop()->add_stop_token_ids(3);
  EXPECT_TRUE(absl::IsInvalidArgument(Read(request).status()));
}

TEST_F(HostileRequestTest, TimesAreBounded) {
  v1::GenerateRequest request;
  request.mutable_token_ids()->add_ids(7);
  auto* timeout = request.mutable_queue_timeout();
  timeout->set_seconds(366 * 24 * 3600);
  timeout->set_nanos(999'999'999);
  EXPECT_TRUE(Read(request).ok());
  timeout->set_seconds(std::numeric_limits<int64_t>::max());  // plus nanos: beyond 64 bits
  EXPECT_TRUE(absl::IsInvalidArgument(Read(request).status()));
  timeout->set_seconds(std::numeric_limits<int64_t>::min());
  timeout->set_nanos(std::numeric_limits<int32_t>::min());
  EXPECT_TRUE(absl::IsInvalidArgument(Read(request).status()));
  timeout->set_seconds(0);
  timeout->set_nanos(0);
  EXPECT_TRUE(absl::IsInvalidArgument(Read(request).status()));
}

}  // namespace
}  // namespace strata::rpc
