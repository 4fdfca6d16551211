#include "server/rpc/grpc_server.h"

#include <thread>

#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/dynamic_message.h"
#include "google/protobuf/util/json_util.h"
#include "google/protobuf/util/time_util.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "prometheus/text_serializer.h"
#include "server/rpc/stats_report.h"
#include "strata/v1/inference.grpc.pb.h"
#include "tests/server/fake_engine.h"
#include "tests/testing/patience.h"

namespace strata::rpc {
namespace {

using grpc::health::v1::HealthCheckResponse;
using testing::Contains;
using testing::HasSubstr;

class GrpcServerTest : public testing::Test {
 protected:
  GrpcServerTest() {
    GrpcServerOptions options;
    options.listen = "127.0.0.1:0";
    auto server = GrpcServer::Start(options, RequestDefaults{}, {"1", "abc", "fake", {}, {"cpu"}},
                                    &state_, &metrics_, Clock::Real());
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    channel_ = grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials());
    stub_ = v1::InferenceService::NewStub(channel_);
    cache_ = v1::CacheService::NewStub(channel_);
    health_ = grpc::health::v1::Health::NewStub(channel_);
  }
  ~GrpcServerTest() override {
    server_.reset();
    engine_.Forget();
  }

  void Load() {
    state_.Publish(FakeModel(&tokenizer_, &engine_));
    server_->MarkReady();
  }
  HealthCheckResponse::ServingStatus HealthOf(const std::string& service) {
    grpc::ClientContext context;
    grpc::health::v1::HealthCheckRequest request;
    request.set_service(service);
    HealthCheckResponse response;
    const grpc::Status status = health_->Check(&context, request, &response);
    return status.ok() ? response.status() : HealthCheckResponse::SERVICE_UNKNOWN;
  }
  static v1::GenerateRequest Ids() {
    v1::GenerateRequest request;
    request.mutable_token_ids()->add_ids(1);
    return request;
  }
  grpc::Status Once(const v1::GenerateRequest& request) {
    grpc::ClientContext context;
    v1::GenerateResult result;
    return stub_->GenerateOnce(&context, request, &result);
  }
  std::string Metrics() {
    return prometheus::TextSerializer().Serialize(metrics_.registry()->Collect());
  }

  template <typename Detail>
  static bool HasDetail(const grpc::Status& status) {
    google::rpc::Status details;
    if (!details.ParseFromString(status.error_details())) return false;
    Detail detail;
    for (const auto& any : details.details()) {
      if (any.UnpackTo(&detail)) return true;
    }
    return false;
  }

  FakeEngine engine_;
  ByteTokenizer tokenizer_;
  CallMetrics metrics_;
  ServingState state_;
  std::unique_ptr<GrpcServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::InferenceService::Stub> stub_;
  std::unique_ptr<v1::CacheService::Stub> cache_;
  std::unique_ptr<grpc::health::v1::Health::Stub> health_;
};

TEST_F(GrpcServerTest, LivesBeforeTheModelIsThere) {
  EXPECT_EQ(HealthOf(kLiveness), HealthCheckResponse::SERVING);
  EXPECT_EQ(HealthOf(kReadiness), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(HealthOf(""), HealthCheckResponse::NOT_SERVING);
  const grpc::Status status = Once(Ids());
  EXPECT_EQ(status.error_code(), grpc::UNAVAILABLE);
  EXPECT_TRUE(HasDetail<google::rpc::RetryInfo>(status));
  grpc::ClientContext context;
  v1::ServerInfo info;
  ASSERT_TRUE(stub_->GetServerInfo(&context, {}, &info).ok());
  EXPECT_FALSE(info.ready());

  Load();
  EXPECT_EQ(HealthOf(kReadiness), HealthCheckResponse::SERVING);
  EXPECT_EQ(HealthOf(""), HealthCheckResponse::SERVING);
  server_->SetLive(false);
  EXPECT_EQ(HealthOf(kLiveness), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(HealthOf(kReadiness), HealthCheckResponse::SERVING);
}

TEST_F(GrpcServerTest, StreamsEventsInOrder) {
  Load();
  grpc::ClientContext context;
  v1::GenerateRequest request;
  request.set_text("hi");
  const auto reader = stub_->Generate(&context, request);
  const auto submission = engine_.Await(0);
  ASSERT_NE(submission.sink, nullptr);
  EXPECT_EQ(submission.request.prompt, (std::vector<int32_t>{ByteTokenizer::kBos, 'h', 'i'}));
  v1::GenerateEvent event;
  submission.sink->OnStarted({3, {}});
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_EQ(event.started().prompt_tokens(), 3u);
  DeltaEvent delta;
  delta.text = "yo";
  submission.sink->OnDelta(delta);
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_EQ(event.delta().text(), "yo");
  submission.sink->OnFinished({});
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_TRUE(event.has_finished());
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_TRUE(event.has_summary());
  EXPECT_FALSE(reader->Read(&event));
  EXPECT_TRUE(reader->Finish().ok());
}

TEST_F(GrpcServerTest, ErrorsCarryTheirDetails) {
  Load();
  v1::GenerateRequest request = Ids();
  request.mutable_stop()->set_max_tokens(0);
  grpc::Status status = Once(request);
  EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_TRUE(HasDetail<google::rpc::BadRequest>(status));

  std::thread client([&] { status = Once(Ids()); });
  engine_.Await(0).sink->OnError(absl::ResourceExhaustedError("QUEUE_FULL: 3 wait"));
  client.join();
  EXPECT_EQ(status.error_code(), grpc::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(HasDetail<google::rpc::RetryInfo>(status));
  EXPECT_TRUE(HasDetail<google::rpc::QuotaFailure>(status));
}

TEST_F(GrpcServerTest, ADisconnectedClientIsCancelledInTheEngine) {
  Load();
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, Ids());
  const auto submission = engine_.Await(0);
  context.TryCancel();
  EXPECT_TRUE(engine_.AwaitCancel(submission.ticket));
  EXPECT_EQ(reader->Finish().error_code(), grpc::CANCELLED);
}

TEST_F(GrpcServerTest, TheDeadlineReachesTheEngine) {
  Load();
  const Clock::TimePoint before = Clock::Real()->Now();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::hours(1));
  const auto reader = stub_->Generate(&context, Ids());
  const auto submission = engine_.Await(0);
  ASSERT_TRUE(submission.request.deadline.has_value());
  // The hour starts between the two readings of the clock; a minute of slack for a busy machine.
  EXPECT_GT(*submission.request.deadline, before + std::chrono::minutes(59));
  EXPECT_LT(*submission.request.deadline, Clock::Real()->Now() + std::chrono::minutes(61));
  context.TryCancel();
}

TEST_F(GrpcServerTest, DrainLetsStreamsFinishAndRefusesNewOnes) {
  Load();
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, Ids());
  const auto submission = engine_.Await(0);
  bool finished_alone = false;
  std::thread drain([&] { finished_alone = server_->Drain(std::chrono::seconds(60)); });
  while (!state_.draining()) std::this_thread::yield();
  EXPECT_EQ(HealthOf(kReadiness), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(HealthOf(kLiveness), HealthCheckResponse::SERVING);
  const grpc::Status refused = Once(Ids());
  EXPECT_EQ(refused.error_code(), grpc::UNAVAILABLE);
  EXPECT_TRUE(HasDetail<google::rpc::RetryInfo>(refused));
  submission.sink->OnFinished({});
  v1::GenerateEvent event;
  while (reader->Read(&event)) continue;
  EXPECT_TRUE(reader->Finish().ok());
  drain.join();
  EXPECT_TRUE(finished_alone);
}

TEST_F(GrpcServerTest, TheDrainTimeoutCutsStreamsOff) {
  Load();
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, Ids());
  engine_.Await(0);
  EXPECT_FALSE(server_->Drain(std::chrono::milliseconds(1)));
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("drain timeout"));
}

TEST_F(GrpcServerTest, TokenizesAndDetokenizes) {
  Load();
  grpc::ClientContext first;
  v1::TokenizeRequest tokenize;
  tokenize.set_text("<s>\xC3\xB6");
  v1::TokenizeResponse tokens;
  ASSERT_TRUE(stub_->Tokenize(&first, tokenize, &tokens).ok());
  EXPECT_EQ(tokens.count(), 6u);  // BOS, "<s>" as text, and two bytes
  grpc::ClientContext second;
  tokenize.set_parse_special(true);
  tokenize.set_add_special(false);
  tokens.Clear();
  ASSERT_TRUE(stub_->Tokenize(&second, tokenize, &tokens).ok());
  EXPECT_EQ(tokens.count(), 3u);
  EXPECT_EQ(tokens.tokens(0).bytes(), "<s>");
  EXPECT_EQ(tokens.tokens(0).end(), 3u);

  grpc::ClientContext third;
  v1::DetokenizeRequest detokenize;
  detokenize.add_ids(ByteTokenizer::kBos);
  detokenize.add_ids(0xC3);
  v1::DetokenizeResponse text;
  ASSERT_TRUE(stub_->Detokenize(&third, detokenize, &text).ok());
  EXPECT_EQ(text.bytes(), "\xC3");
  EXPECT_EQ(text.text(), "\xEF\xBF\xBD");
  grpc::ClientContext fourth;
  detokenize.add_ids(257);
  EXPECT_EQ(stub_->Detokenize(&fourth, detokenize, &text).error_code(), grpc::INVALID_ARGUMENT);
}

TEST_F(GrpcServerTest, DetokenizesAContextAtMost) {
  Load();
  v1::DetokenizeRequest request;
  for (int i = 0; i < engine_.options().max_context; ++i) request.add_ids('x');
  grpc::ClientContext first;
  v1::DetokenizeResponse response;
  EXPECT_TRUE(stub_->Detokenize(&first, request, &response).ok());
  request.add_ids('x');
  grpc::ClientContext second;
  EXPECT_EQ(stub_->Detokenize(&second, request, &response).error_code(), grpc::INVALID_ARGUMENT);
}

// The answer must fit into the trailer that clients take.
TEST_F(GrpcServerTest, AModelsNameThatIsNoneIsToldInBrief) {
  Load();
  v1::GenerateRequest request = Ids();
  request.set_model(std::string(127, 'x') + "\xC3\xB6" + std::string(100'000, 'y'));
  const grpc::Status status = Once(request);
  EXPECT_EQ(status.error_code(), grpc::NOT_FOUND);
  EXPECT_THAT(status.error_message(), HasSubstr("xx\xEF\xBF\xBD...' is not loaded"));
}

TEST_F(GrpcServerTest, DescribesModelsAndCache) {
  Load();
  EngineSnapshot snapshot;
  snapshot.running = 3;
  snapshot.cache.tiers[1].used_bytes = 42;
  snapshot.cache.links[2] = {10, 80, 2, 5};
  engine_.set_snapshot(snapshot);
  grpc::ClientContext first;
  v1::ListModelsResponse models;
  ASSERT_TRUE(stub_->ListModels(&first, {}, &models).ok());
  ASSERT_EQ(models.models_size(), 1);
  EXPECT_EQ(models.models(0).name(), "fake");
  EXPECT_EQ(models.models(0).context_length(), 100u);
  EXPECT_THAT(models.models(0).eos_token_ids(), testing::ElementsAre(0u));
  EXPECT_EQ(models.models(0).default_kv_policy().recent_tokens(), 256u);
  grpc::ClientContext second;
  v1::CacheStats stats;
  ASSERT_TRUE(cache_->GetStats(&second, {}, &stats).ok());
  EXPECT_EQ(stats.running(), 3u);
  EXPECT_EQ(stats.tiers(1).used_bytes(), 42u);
  EXPECT_EQ(stats.tiers(1).layout(), "i4");
  EXPECT_EQ(stats.links(2).from(), v1::TIER_COLD);
  EXPECT_EQ(stats.links(2).bytes_f16_equivalent(), 80u);
}

v1::WatchCacheStatsRequest Every(int milliseconds) {
  v1::WatchCacheStatsRequest request;
  *request.mutable_interval() =
      google::protobuf::util::TimeUtil::MillisecondsToDuration(milliseconds);
  return request;
}

TEST_F(GrpcServerTest, WatchersGetReportAfterReport) {
  grpc::ClientContext early;
  EXPECT_EQ(cache_->WatchStats(&early, {})->Finish().error_code(), grpc::UNAVAILABLE);
  Load();
  EngineSnapshot snapshot;
  snapshot.generation_tokens = 1;
  snapshot.inter_token_latency = {{0.5, 1}, {1, 2, 3}, 7.5};
  snapshot.cache.tiers[2].f16_bytes = 77;
  snapshot.cache.integrity_failures = {2, 3};
  engine_.set_snapshot(snapshot);
  grpc::ClientContext context;
  const auto reader = cache_->WatchStats(&context, Every(100));
  v1::CacheStats stats;
  ASSERT_TRUE(reader->Read(&stats));
  EXPECT_EQ(stats.model(), "fake");
  EXPECT_EQ(stats.generation_tokens(), 1u);
  EXPECT_EQ(stats.tiers(2).bytes_f16_equivalent(), 77u);
  EXPECT_EQ(stats.integrity_failures(), 5u);
  EXPECT_THAT(stats.inter_token_latency().counts(), testing::ElementsAre(1u, 2u, 3u));
  EXPECT_EQ(stats.inter_token_latency().sum_seconds(), 7.5);
  snapshot.generation_tokens = 2;
  engine_.set_snapshot(snapshot);
  // Reports that were on their way may still show the old one.
  while (reader->Read(&stats) && stats.generation_tokens() != 2) continue;
  EXPECT_EQ(stats.generation_tokens(), 2u);
  context.TryCancel();
  while (reader->Read(&stats)) continue;
  EXPECT_EQ(reader->Finish().error_code(), grpc::CANCELLED);
}

TEST_F(GrpcServerTest, WatchingHasLimits) {
  Load();
  for (const int interval : {-1, 0, 99, 60'001}) {
    grpc::ClientContext context;
    const grpc::Status status = cache_->WatchStats(&context, Every(interval))->Finish();
    EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT) << interval;
    EXPECT_THAT(status.error_message(), HasSubstr("interval")) << interval;
    EXPECT_THAT(status.error_message(), HasSubstr("0.1 s to 60 s")) << interval;
  }
  v1::WatchCacheStatsRequest ages;
  ages.mutable_interval()->set_seconds(int64_t{1} << 62);
  grpc::ClientContext too_long;
  EXPECT_EQ(cache_->WatchStats(&too_long, ages)->Finish().error_code(), grpc::INVALID_ARGUMENT);

  struct Watch {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::CacheStats>> reader;
  };
  std::vector<std::unique_ptr<Watch>> watches;
  v1::CacheStats stats;
  for (int i = 0; i < 32; ++i) {
    watches.push_back(std::make_unique<Watch>());
    watches.back()->reader = cache_->WatchStats(&watches.back()->context, Every(60'000));
    ASSERT_TRUE(watches.back()->reader->Read(&stats));
  }
  grpc::ClientContext one_more;
  const grpc::Status full = cache_->WatchStats(&one_more, {})->Finish();
  EXPECT_EQ(full.error_code(), grpc::RESOURCE_EXHAUSTED);
  EXPECT_THAT(full.error_message(), HasSubstr("32"));
  EXPECT_TRUE(HasDetail<google::rpc::QuotaFailure>(full));
  watches.front()->context.TryCancel();
  watches.front()->reader->Finish();
  // The server learns of it a little later.
  bool entered = false;
  while (!entered) {
    grpc::ClientContext again;
    entered = cache_->WatchStats(&again, Every(60'000))->Read(&stats);
    again.TryCancel();
  }
}

// A watcher neither holds a drain up nor outlives it.
TEST_F(GrpcServerTest, DrainingEndsWatching) {
  Load();
  grpc::ClientContext context;
  const auto reader = cache_->WatchStats(&context, Every(60'000));
  v1::CacheStats stats;
  ASSERT_TRUE(reader->Read(&stats));
  EXPECT_TRUE(server_->Drain(std::chrono::seconds(60)));
  EXPECT_FALSE(reader->Read(&stats));
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("shutting down"));
}

TEST_F(GrpcServerTest, StatsAreJsonToo) {
  EXPECT_THAT(StatsJson(state_), HasSubstr("still loading"));
  Load();
  EngineSnapshot snapshot;
  snapshot.running = 3;
  engine_.set_snapshot(snapshot);
  v1::CacheStats stats;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(StatsJson(state_), &stats).ok());
  EXPECT_EQ(stats.running(), 3u);
  EXPECT_EQ(stats.model(), "fake");
}

TEST_F(GrpcServerTest, WhatIsNotSupportedSaysSo) {
  Load();
  const auto expect_refusal = [](const grpc::Status& status, const std::string& name) {
    EXPECT_EQ(status.error_code(), grpc::UNIMPLEMENTED) << name;
    EXPECT_THAT(status.error_message(), HasSubstr(name));
  };
  grpc::ClientContext contexts[3];
  v1::RenderChatResponse chat;
  expect_refusal(stub_->RenderChat(&contexts[0], {}, &chat), "RenderChat");
  v1::DropSessionResponse drop;
  expect_refusal(cache_->DropSession(&contexts[1], {}, &drop), "DropSession");
  v1::FlushResponse flush;
  expect_refusal(cache_->Flush(&contexts[2], {}, &flush), "Flush");
}

// Sends raw bytes to a method and returns the first answer's bytes.
grpc::Status CallRaw(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                     const std::string& request, std::string* answer) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kPatience);
  grpc::CompletionQueue queue;
  const auto next = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  const auto stream = stub.PrepareCall(&context, method, &queue);
  stream->StartCall(nullptr);
  next();
  const grpc::Slice slice(request);
  stream->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
  next();
  grpc::ByteBuffer buffer;
  stream->Read(&buffer, nullptr);
  if (next()) {
    std::vector<grpc::Slice> slices;
    if (buffer.Dump(&slices).ok()) {
      for (const grpc::Slice& part : slices) {
        answer->append(reinterpret_cast<const char*>(part.begin()), part.size());
      }
    }
    context.TryCancel();  // one answer is enough
  }
  grpc::Status status;
  stream->Finish(&status, nullptr);
  next();
  queue.Shutdown();
  return status;
}

TEST_F(GrpcServerTest, AMalformedRequestIsAnInvalidArgument) {
  Load();
  std::string answer;
  // Field 3, text, with a byte that is not UTF-8.
  const grpc::Status status = CallRaw(channel_, "/strata.v1.InferenceService/GenerateOnce",
                                      std::string("\x1A\x01\xFF", 3), &answer);
  EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT) << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr("UTF-8"));
  EXPECT_EQ(engine_.submitted(), 0u);
}

TEST_F(GrpcServerTest, ReflectionListsAndDescribesEveryService) {
  const auto* pool = google::protobuf::DescriptorPool::generated_pool();
  const std::string package = "grpc.reflection.v1alpha.";
  google::protobuf::DynamicMessageFactory factory;
  const auto* request_type = pool->FindMessageTypeByName(package + "ServerReflectionRequest");
  ASSERT_NE(request_type, nullptr);
  const auto ask = [&](const std::string& field, const std::string& value) {
    const std::unique_ptr<google::protobuf::Message> request(
        factory.GetPrototype(request_type)->New());
    request->GetReflection()->SetString(request.get(), request_type->FindFieldByName(field), value);
    std::string answer;
    CallRaw(channel_, "/" + package + "ServerReflection/ServerReflectionInfo",
            request->SerializeAsString(), &answer);
    return answer;
  };
  const std::string services = ask("list_services", "");
  for (const char* service :
       {"strata.v1.InferenceService", "strata.v1.CacheService", "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection"}) {
    EXPECT_THAT(services, HasSubstr(service));
    const auto* descriptor = pool->FindServiceByName(service);
    ASSERT_NE(descriptor, nullptr);
    // The answer holds the file's descriptor, which names the file.
    const std::string answer = ask("file_containing_symbol", service);
    EXPECT_THAT(answer, HasSubstr(descriptor->file()->name()));
    EXPECT_THAT(answer, HasSubstr(descriptor->method(0)->name()));
  }
}

TEST_F(GrpcServerTest, CountsCallsByMethodAndCode) {
  EXPECT_THAT(Metrics(), HasSubstr("grpc_server_handled_total{grpc_code=\"OK\",grpc_method="
                                   "\"Generate\",grpc_service=\"strata.v1.InferenceService\","
                                   "grpc_type=\"server_stream\"} 0"));
  Load();
  grpc::ClientContext context;
  v1::ListModelsResponse models;
  ASSERT_TRUE(stub_->ListModels(&context, {}, &models).ok());
  v1::GenerateRequest request = Ids();
  request.set_model("other");
  EXPECT_EQ(Once(request).error_code(), grpc::NOT_FOUND);
  std::string answer;
  CallRaw(channel_, "/strata.v1.InferenceService/GenerateOnce", std::string("\x1A\x01\xFF", 3),
          &answer);
  server_.reset();  // a call is counted when the server has let go of it
  const std::string text = Metrics();
  const auto series = [](const std::string& name, const std::string& code,
                         const std::string& method) {
    return name + "{" + (code.empty() ? "" : "grpc_code=\"" + code + "\",") + "grpc_method=\"" +
           method + "\",grpc_service=\"strata.v1.InferenceService\",grpc_type=\"unary\"} ";
  };
  EXPECT_THAT(text, HasSubstr(series("grpc_server_handled_total", "OK", "ListModels") + "1"));
  EXPECT_THAT(text,
              HasSubstr(series("grpc_server_handled_total", "NotFound", "GenerateOnce") + "1"));
  EXPECT_THAT(
      text,
      HasSubstr(series("grpc_server_handled_total", "InvalidArgument", "GenerateOnce") + "1"));
  EXPECT_THAT(text, HasSubstr(series("grpc_server_started_total", "", "GenerateOnce") + "2"));
  EXPECT_THAT(text,
              HasSubstr(series("grpc_server_handling_seconds_count", "", "GenerateOnce") + "2"));
}

TEST_F(GrpcServerTest, ASecondServerOnTheSamePortIsRefused) {
  GrpcServerOptions options;
  options.listen = server_->address();
  ServingState state;
  CallMetrics metrics;
  const auto second = GrpcServer::Start(options, {}, {}, &state, &metrics, Clock::Real());
  EXPECT_TRUE(absl::IsUnavailable(second.status()));
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(options.listen));
}

}  // namespace
}  // namespace strata::rpc
