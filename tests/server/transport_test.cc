// The gRPC port as clients meet it: TLS, tokens, limits.

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "prometheus/text_serializer.h"
#include "server/rpc/grpc_server.h"
#include "strata/v1/inference.grpc.pb.h"
#include "tests/server/fake_engine.h"
#include "tests/server/test_certificates.h"
#include "tests/testing/test_folder.h"

namespace strata::rpc {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr char kToken[] = "general-token-0123456789";
constexpr char kCacheToken[] = "cache-token-0123456789";

class TransportTest : public testing::Test {
 protected:
  TransportTest() { options_.listen = "127.0.0.1:0"; }
  ~TransportTest() override {
    server_.reset();
    engine_.Forget();
  }

  std::string Put(const std::string& name, const std::string& text) const {
    return folder_.Put(name, text);
  }
  void Put(const TestIdentity& identity) const {
    Put("tls.crt", identity.certificate);
    Put("tls.key", identity.key);
  }
  absl::Status Start() {
    auto server = GrpcServer::Start(options_, RequestDefaults{}, {"1", "abc", "fake", {}, {"cpu"}},
                                    &state_, &metrics_, Clock::Real());
    if (!server.ok()) return server.status();
    server_ = *std::move(server);
    state_.Publish(FakeModel(&tokenizer_, &engine_));
    server_->MarkReady();
    return absl::OkStatus();
  }
  // A connection of its own, not one that an earlier channel left.
  std::shared_ptr<grpc::Channel> Connect(
      const std::shared_ptr<grpc::ChannelCredentials>& credentials,
      const std::string& address = "") {
    grpc::ChannelArguments arguments;
    arguments.SetSslTargetNameOverride("localhost");
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetMaxSendMessageSize(-1);
    return grpc::CreateCustomChannel(address.empty() ? server_->address() : address, credentials,
                                     arguments);
  }
  std::shared_ptr<grpc::Channel> Connect() { return Connect(grpc::InsecureChannelCredentials()); }
  static std::shared_ptr<grpc::ChannelCredentials> Trusting(const TestIdentity& authority,
                                                            const TestIdentity& client = {}) {
    return grpc::SslCredentials({authority.certificate, client.key, client.certificate});
  }
  static grpc::Status Info(const std::shared_ptr<grpc::Channel>& channel,
                           const std::string& token = "") {
    grpc::ClientContext context;
    if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
    v1::ServerInfo info;
    return v1::InferenceService::NewStub(channel)->GetServerInfo(&context, {}, &info);
  }
  static grpc::Status Stats(const std::shared_ptr<grpc::Channel>& channel,
                            const std::string& token) {
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer " + token);
    v1::CacheStats stats;
    return v1::CacheService::NewStub(channel)->GetStats(&context, {}, &stats);
  }
  static grpc::Status Health(const std::shared_ptr<grpc::Channel>& channel,
                             const std::string& service) {
    grpc::ClientContext context;
    grpc::health::v1::HealthCheckRequest request;
    request.set_service(service);
    grpc::health::v1::HealthCheckResponse response;
    const grpc::Status status =
        grpc::health::v1::Health::NewStub(channel)->Check(&context, request, &response);
    if (status.ok() && response.status() != grpc::health::v1::HealthCheckResponse::SERVING) {
      return {grpc::StatusCode::UNAVAILABLE, "not serving"};
    }
    return status;
  }
  std::string Metrics() {
    return prometheus::TextSerializer().Serialize(server_->security_metrics()->Collect());
  }
  // A TCP connection that says nothing.
  int Dial() const {
    int port = 0;
    EXPECT_TRUE(
        absl::SimpleAtoi(server_->address().substr(server_->address().rfind(':') + 1), &port));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int connection = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(connect(connection, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    return connection;
  }
  // Whether the server closes it; it may say something first.
  static bool IsClosedByServer(int connection) {
    char bytes[256];
    while (true) {
      pollfd polled = {connection, POLLIN, 0};
      if (poll(&polled, 1, /*timeout_ms=*/60000) <= 0) return false;
      if (read(connection, bytes, sizeof(bytes)) <= 0) return true;
    }
  }

  const TestFolder folder_;
  GrpcServerOptions options_;
  FakeEngine engine_;
  ByteTokenizer tokenizer_;
  CallMetrics metrics_;
  ServingState state_;
  std::unique_ptr<GrpcServer> server_;
};

TEST_F(TransportTest, ACallNeedsOneOfTheTokens) {
  options_.security.token_file = Put("tokens", kToken);
  options_.security.cache_token_file = Put("cache_tokens", kCacheToken);
  ASSERT_TRUE(Start().ok());
  const auto channel = Connect();
  const grpc::Status without = Info(channel);
  EXPECT_EQ(without.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_THAT(without.error_message(), HasSubstr("authorization: Bearer"));
  const grpc::Status wrong = Info(channel, "wrong-token-0123456789");
  EXPECT_EQ(wrong.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_THAT(wrong.error_message(), Not(HasSubstr("wrong-token")));
  EXPECT_TRUE(Info(channel, kToken).ok()) << Info(channel, kToken).error_message();
  EXPECT_TRUE(Stats(channel, kCacheToken).ok());
  EXPECT_EQ(Stats(channel, kToken).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_TRUE(Health(channel, kReadiness).ok());
  // A refused stream never reaches the engine.
  grpc::ClientContext context;
  v1::GenerateRequest request;
  request.mutable_token_ids()->add_ids(1);
  const auto reader = v1::InferenceService::NewStub(channel)->Generate(&context, request);
  v1::GenerateEvent event;
  EXPECT_FALSE(reader->Read(&event));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(engine_.submitted(), 0u);
  EXPECT_THAT(Metrics(), HasSubstr("strata_auth_refused_total{reason=\"no_token\"} 2"));
  EXPECT_THAT(Metrics(), HasSubstr("strata_auth_refused_total{reason=\"wrong_token\"} 1"));
  EXPECT_THAT(Metrics(), HasSubstr("strata_auth_refused_total{reason=\"wrong_service\"} 1"));

  Put("tokens", "rotated-token-0123456789");
  EXPECT_EQ(Info(channel, kToken).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_TRUE(Info(channel, "rotated-token-0123456789").ok());
  Put("tokens", "bad");
  EXPECT_TRUE(Info(channel, "rotated-token-0123456789").ok());
  EXPECT_THAT(
      Metrics(),
      HasSubstr("strata_credential_reloads_total{option=\"token-file\",result=\"accepted\"} "
                "1"));
  EXPECT_THAT(
      Metrics(),
      HasSubstr("strata_credential_reloads_total{option=\"token-file\",result=\"rejected\"} "
                "1"));
}

TEST_F(TransportTest, TheCertificateIsReplacedWithoutARestart) {
  const TestIdentity old_ca = MakeTestIdentity({.name = "old"});
  const TestIdentity new_ca = MakeTestIdentity({.name = "new"});
  Put(MakeTestIdentity({.issuer = &old_ca}));
  options_.security.tls = {folder_.Path("tls.crt"), folder_.Path("tls.key"), ""};
  ASSERT_TRUE(Start().ok());
  const auto before = Connect(Trusting(old_ca));
  EXPECT_TRUE(Info(before).ok());
  EXPECT_EQ(Info(Connect()).error_code(), grpc::StatusCode::UNAVAILABLE);  // plain text
  EXPECT_EQ(Info(Connect(Trusting(new_ca))).error_code(), grpc::StatusCode::UNAVAILABLE);

  Put("tls.crt", "not a certificate");
  EXPECT_TRUE(Info(Connect(Trusting(old_ca))).ok());
  Put(MakeTestIdentity({.valid_from_s = -7200, .valid_until_s = -3600, .issuer = &new_ca}));
  EXPECT_TRUE(Info(Connect(Trusting(old_ca))).ok());
  EXPECT_THAT(Metrics(), HasSubstr("{option=\"tls-cert\",result=\"accepted\"} 0"));
  EXPECT_THAT(Metrics(), Not(HasSubstr("{option=\"tls-cert\",result=\"rejected\"} 0")));

  Put(MakeTestIdentity({.issuer = &new_ca}));
  EXPECT_TRUE(Info(Connect(Trusting(new_ca))).ok());
  EXPECT_EQ(Info(Connect(Trusting(old_ca))).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(Info(before).ok());  // a connection that stands is not touched
  EXPECT_THAT(Metrics(), HasSubstr("{option=\"tls-cert\",result=\"accepted\"} 1"));
  EXPECT_THAT(Metrics(), HasSubstr("strata_tls_certificate_expiry_timestamp_seconds "));
}

TEST_F(TransportTest, AnExpiredCertificateDoesNotStart) {
  Put(MakeTestIdentity({.valid_from_s = -7200, .valid_until_s = -3600}));
  options_.security.tls = {folder_.Path("tls.crt"), folder_.Path("tls.key"), ""};
  const absl::Status status = Start();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("the certificate expired on"));
}

TEST_F(TransportTest, MutualTlsTakesOnlyClientsOfItsAuthority) {
  const TestIdentity ca = MakeTestIdentity({.name = "ca"});
  const TestIdentity stranger = MakeTestIdentity({.name = "stranger"});
  Put(MakeTestIdentity({.issuer = &ca}));
  options_.security.tls = {folder_.Path("tls.crt"), folder_.Path("tls.key"),
                           Put("ca.crt", ca.certificate)};
  options_.health_listen = "127.0.0.1:0";
  ASSERT_TRUE(Start().ok());
  const TestIdentity known = MakeTestIdentity({.name = "client", .issuer = &ca});
  const TestIdentity unknown = MakeTestIdentity({.name = "client", .issuer = &stranger});
  EXPECT_TRUE(Info(Connect(Trusting(ca, known))).ok());
  EXPECT_EQ(Info(Connect(Trusting(ca))).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Info(Connect(Trusting(ca, unknown))).error_code(), grpc::StatusCode::UNAVAILABLE);

  // Probes reach health, and nothing else, without any of it.
  const auto probe = Connect(grpc::InsecureChannelCredentials(), server_->health_address());
  EXPECT_TRUE(Health(probe, kReadiness).ok());
  EXPECT_TRUE(Health(probe, kLiveness).ok());
  EXPECT_EQ(Info(probe).error_code(), grpc::StatusCode::UNIMPLEMENTED);
  server_->SetLive(false);
  EXPECT_FALSE(Health(probe, kLiveness).ok());
}

TEST_F(TransportTest, AMessageOf100MiBIsRefused) {
  ASSERT_TRUE(Start().ok());
  const auto channel = Connect();
  v1::TokenizeRequest request;
  request.set_text(std::string(100 << 20, 'x'));
  v1::TokenizeResponse response;
  const auto stub = v1::InferenceService::NewStub(channel);
  grpc::ClientContext context;
  const grpc::Status status = stub->Tokenize(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr("67108864"));
  EXPECT_TRUE(Info(channel).ok());
}

TEST_F(TransportTest, LargeHeadersAreRefused) {
  ASSERT_TRUE(Start().ok());
  const auto channel = Connect();
  const grpc::Status status = Info(channel, std::string(20000, 'x'));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
  EXPECT_TRUE(Info(Connect()).ok());  // gRPC may have closed the connection that sent them
}

TEST_F(TransportTest, AThousandIdleConnectionsDisturbNobodyAndGo) {
  options_.handshake_timeout = std::chrono::seconds(1);
  ASSERT_TRUE(Start().ok());
  std::vector<int> idle;
  for (int i = 0; i < 1000; ++i) idle.push_back(Dial());
  // The time to shake hands is short here, and a busy machine may take longer for one.
  bool served = false;
  for (int tries = 0; tries < 50 && !served; ++tries) served = Info(Connect()).ok();
  EXPECT_TRUE(served);
  for (const int connection : idle) EXPECT_TRUE(IsClosedByServer(connection));
  for (const int connection : idle) close(connection);
  EXPECT_THAT(Metrics(), HasSubstr("strata_connections_refused_total 0"));
}

TEST_F(TransportTest, ConnectionsAboveTheLimitAreClosedAndThePortStaysOpen) {
  // Both ends of every connection are descriptors of this process, which count.
  options_.connections_max = 256;
  options_.health_listen = "127.0.0.1:0";
  ASSERT_TRUE(Start().ok());
  std::vector<int> held;
  for (int i = 0; i < 200; ++i) held.push_back(Dial());
  EXPECT_TRUE(IsClosedByServer(held.back()));
  EXPECT_THAT(Metrics(), Not(HasSubstr("strata_connections_refused_total 0")));
  // Probes have some of their own: the client's end is above the limit, the server's below theirs.
  for (const int connection : held) close(connection);
  EXPECT_TRUE(Info(Connect()).ok());
  EXPECT_TRUE(
      Health(Connect(grpc::InsecureChannelCredentials(), server_->health_address()), kReadiness)
          .ok());
}

TEST_F(TransportTest, StreamsAboveTheLimitWaitForTheirTurn) {
  options_.streams_max = 2;
  ASSERT_TRUE(Start().ok());
  const auto channel = Connect();
  EXPECT_TRUE(Info(channel).ok());  // the client knows the server's settings from here on
  const auto stub = v1::InferenceService::NewStub(channel);
  v1::GenerateRequest request;
  request.mutable_token_ids()->add_ids(1);
  grpc::ClientContext contexts[3];
  std::unique_ptr<grpc::ClientReader<v1::GenerateEvent>> readers[3];
  for (int i = 0; i < 2; ++i) readers[i] = stub->Generate(&contexts[i], request);
  const auto first = engine_.Await(0);
  engine_.Await(1);
  // This call returns once the request is on its way, which takes a free stream.
  std::thread third([&] { readers[2] = stub->Generate(&contexts[2], request); });
  // Calls of another connection go through meanwhile, enough of them for the third stream's to come
  // if it could.
  const auto other = Connect();
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(Info(other).ok());
  EXPECT_EQ(engine_.submitted(), 2u);
  first.sink->OnFinished({});
  EXPECT_NE(engine_.Await(2).sink, nullptr);
  third.join();
  for (grpc::ClientContext& context : contexts) context.TryCancel();
}

}  // namespace
}  // namespace strata::rpc
