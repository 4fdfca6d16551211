// What Kubernetes does to replicas under load, done to two processes.

#include <atomic>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "strata/v1/inference.grpc.pb.h"
#include "tests/server/program_fixture.h"
#include "tests/server/test_certificates.h"

namespace strata {
namespace {

using testing::HasSubstr;

constexpr int kTokens = 100;
constexpr int kClients = 4;

// As docs/OPERATIONS.md recommends it: every replica in turn, and another one where one is going.
constexpr char kServiceConfig[] = R"({
  "loadBalancingConfig": [{"round_robin": {}}],
  "methodConfig": [{"name": [{}], "waitForReady": true, "retryPolicy": {
    "maxAttempts": 5, "initialBackoff": "0.05s", "maxBackoff": "1s", "backoffMultiplier": 2,
    "retryableStatusCodes": ["UNAVAILABLE"]}}]})";

class RollingRestartTest : public EndToEndTest {
 protected:
  struct Replica {
    std::string name;
    std::string address = "127.0.0.1:0";  // from its first start on, the same
    std::unique_ptr<Process> process;
  };

  void StartReplica(Replica* replica) {
    const std::string file = Path(replica->name + ".address");
    replica->process = std::make_unique<Process>(
        std::vector<std::string>{STRATA_SERVER_BINARY, "--model=" + Path("tiny.gguf"),
                                 "--listen=" + replica->address, "--metrics-listen=127.0.0.1:0",
                                 "--threads=1", "--max-sequences=8",
                                 "--basis-cache=" + folder_.path(), "--address-file=" + file},
        Path(replica->name));
    std::string http;
    const bool ready = WaitFor([&] {
      std::ifstream lines(file);
      if (!(lines >> replica->address >> http)) return false;
      const auto answer = httplib::Client("http://" + http).Get("/readyz");
      return answer && answer->status == 200;
    });
    ASSERT_TRUE(ready) << replica->process->err();
  }

  // Streams one generation and counts it, or remembers what went wrong.
  void GenerateOnce(v1::InferenceService::Stub* stub) {
    v1::GenerateRequest request;
    request.set_text("once");
    request.mutable_stop()->set_max_tokens(kTokens);
    request.mutable_stop()->set_ignore_eos(true);
    grpc::ClientContext context;
    const auto reader = stub->Generate(&context, request);
    v1::GenerateEvent event;
    uint32_t tokens = 0;
    while (reader->Read(&event)) {
      if (event.has_summary()) tokens = event.summary().usage().completion_tokens();
    }
    const grpc::Status status = reader->Finish();
    if (status.ok() && tokens == kTokens) {
      ++done_;
      return;
    }
    absl::MutexLock lock(&mutex_);
    failures_.push_back(absl::StrCat(status.error_code(), " ", status.error_message(), " after ",
                                     tokens, " tokens"));
  }
  // Waits until that many more generations have ended well.
  bool Progress(int generations) {
    const int target = done_.load() + generations;
    return WaitFor([&] { return done_.load() >= target; });
  }

  std::atomic<int> done_{0};
  absl::Mutex mutex_;
  std::vector<std::string> failures_;
};

TEST_F(RollingRestartTest, NoRequestOfAClientThatRetriesFails) {
  Replica replicas[] = {{"a"}, {"b"}};
  for (Replica& replica : replicas) StartReplica(&replica);
  grpc::ChannelArguments arguments;
  arguments.SetServiceConfigJSON(kServiceConfig);
  // A replica that comes back is found again soon, not after two minutes.
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 200);
  const auto channel = grpc::CreateCustomChannel(
      absl::StrCat("ipv4:", replicas[0].address, ",", replicas[1].address),
      grpc::InsecureChannelCredentials(), arguments);
  const auto stub = v1::InferenceService::NewStub(channel);
  std::atomic<bool> stop{false};
  std::vector<std::thread> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.emplace_back([&] {
      while (!stop.load()) GenerateOnce(stub.get());
    });
  }
  EXPECT_TRUE(Progress(2 * kClients));
  for (Replica& replica : replicas) {
    replica.process->Signal(SIGTERM);
    EXPECT_EQ(replica.process->Wait(), 0) << replica.process->err();
    EXPECT_TRUE(Progress(kClients));  // the other one serves
    StartReplica(&replica);
    EXPECT_TRUE(Progress(2 * kClients));
  }
  stop.store(true);
  for (std::thread& client : clients) client.join();
  EXPECT_THAT(failures_, testing::IsEmpty());
}

TEST_F(RollingRestartTest, TermUnderLoadLosesNoStreamThatFitsTheDrain) {
  Replica replica{"a"};
  StartReplica(&replica);
  const auto stub = v1::InferenceService::NewStub(
      grpc::CreateChannel(replica.address, grpc::InsecureChannelCredentials()));
  // All of them have begun when the signal comes, more than run at once: some wait in the queue.
  constexpr int kStreams = 12;
  std::vector<std::thread> clients;
  for (int i = 0; i < kStreams; ++i) {
    clients.emplace_back([&] { GenerateOnce(stub.get()); });
  }
  const auto started = [&] {
    grpc::ClientContext context;
    v1::CacheStats stats;
    const auto cache = v1::CacheService::NewStub(
        grpc::CreateChannel(replica.address, grpc::InsecureChannelCredentials()));
    const bool ok = cache->GetStats(&context, {}, &stats).ok();
    return ok && stats.running() + stats.waiting() + static_cast<uint64_t>(done_) >= kStreams;
  };
  EXPECT_TRUE(WaitFor(started));
  replica.process->Signal(SIGTERM);
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(replica.process->Wait(), 0) << replica.process->err();
  EXPECT_THAT(failures_, testing::IsEmpty());
  EXPECT_EQ(done_.load(), kStreams);
}

// The programs with everything a hostile network asks for, as the production overlay has it.
TEST_F(RollingRestartTest, ClientAndServerMeetOverMutualTlsWithATokenAndProbesInPlainText) {
  const rpc::TestIdentity ca = rpc::MakeTestIdentity({.name = "ca"});
  const rpc::TestIdentity server = rpc::MakeTestIdentity({.issuer = &ca});
  const rpc::TestIdentity client = rpc::MakeTestIdentity({.name = "client", .issuer = &ca});
  const auto put = [&](const std::string& name, const std::string& text) {
    return folder_.Put(name, text);
  };
  put("token", "a-token-of-24-characters\n");
  Serve({"--tls-cert=" + put("crt", server.certificate), "--tls-key=" + put("key", server.key),
         "--tls-client-ca=" + put("ca", ca.certificate), "--token-file=" + Path("token"),
         "--health-listen=127.0.0.1:0"});
  const std::vector<std::string> trust = {"--tls-ca=" + Path("ca"), "--tls-name=localhost",
                                          "--tls-cert=" + put("client.crt", client.certificate),
                                          "--tls-key=" + put("client.key", client.key)};
  std::vector<std::string> with_token = {"info", "--token-file=" + Path("token")};
  with_token.insert(with_token.end(), trust.begin(), trust.end());
  auto run = Start(with_token);
  EXPECT_EQ(run->Wait(), 0) << run->err();
  std::vector<std::string> without_token = {"info"};
  without_token.insert(without_token.end(), trust.begin(), trust.end());
  run = Start(without_token);
  EXPECT_EQ(run->Wait(), 1);
  EXPECT_THAT(run->err(), HasSubstr("UNAUTHENTICATED"));
  run = Start({"info"});
  EXPECT_EQ(run->Wait(), 3);  // plain text, where TLS is spoken
  EXPECT_THAT(server_->err(), HasSubstr("serving grpc.health.v1 on 127.0.0.1:"));
  EXPECT_FALSE(absl::StrContains(server_->err(), "a-token-of-24"));
}

}  // namespace
}  // namespace strata
