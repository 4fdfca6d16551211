// The real programs, started as an operator and a user would.

#include <pty.h>
#include <termios.h>

#include <deque>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "strata/v1/inference.grpc.pb.h"
#include "tests/server/program_fixture.h"

namespace strata {
namespace {

using testing::HasSubstr;

// A generation that would take all of the context.
const std::vector<std::string> kLongCall = {"generate", "-n", "4000", "--ignore-eos", "-q", "once"};

TEST_F(EndToEndTest, GeneratesTheSameTextStreamedOrWhole) {
  Serve();
  const v1::GenerateResult first =
      Generate({"-n", "20", "--ignore-eos", "--token-ids", "--logprobs", "hello"});
  ASSERT_EQ(first.choices_size(), 1);
  EXPECT_EQ(first.usage().completion_tokens(), 20u);
  EXPECT_EQ(first.choices(0).token_ids_size(), 20);
  EXPECT_EQ(first.choices(0).logprobs_size(), 20);
  EXPECT_EQ(first.choices(0).reason(), v1::FINISH_REASON_LENGTH);
  const auto stream = Start({"generate", "-n", "20", "--ignore-eos", "hello"});
  EXPECT_EQ(stream->Wait(), 0) << stream->err();
  EXPECT_EQ(stream->out(), first.choices(0).text() + "\n");
  EXPECT_THAT(stream->err(), HasSubstr("ended by length"));
  const std::string metrics = Metrics();
  EXPECT_THAT(metrics, HasSubstr("strata_requests_total{finish_reason=\"length\"} 2\n"));
  EXPECT_THAT(metrics, HasSubstr("strata_generation_tokens_total 40\n"));
  EXPECT_TRUE(Empty());
}

TEST_F(EndToEndTest, ALongPromptPassesThroughEveryTierAndARestart) {
  Serve(Ladder());
  const std::vector<std::string> call = {"-n", "200", "--ignore-eos", "-f", Path("prompt")};
  std::ofstream(Path("prompt")) << std::string(900, 'x');
  const v1::GenerateResult first = Generate(call);
  ASSERT_EQ(first.kv().links_size(), 3);
  // A tiny model can be done before the disk has written a block, which is then read in memory:
  // the text is the same, but no bytes went to the disk. So ask until some did.
  v1::GenerateResult moved = first;
  for (int tries = 0; tries < 200 && moved.kv().links(2).bytes() == 0; ++tries) {
    moved = Generate(call);
    EXPECT_EQ(moved.choices(0).text(), first.choices(0).text());
  }
  ASSERT_EQ(first.kv().tiers_size(), 3);
  for (const v1::TierUse& tier : first.kv().tiers()) {
    EXPECT_GT(tier.tokens(), 0u) << v1::Tier_Name(tier.tier());
  }
  for (const v1::LinkUse& link : moved.kv().links()) {
    EXPECT_GT(link.bytes(), 0u) << v1::Tier_Name(link.from());
    EXPECT_LT(link.bytes(), link.bytes_f16_equivalent()) << v1::Tier_Name(link.from());
  }
  EXPECT_EQ(first.effective_policy().min_format(), v1::KV_FORMAT_INT2);
  EXPECT_TRUE(WaitFor([&] { return Empty(); }));
  server_->Signal(SIGTERM);
  EXPECT_EQ(server_->Wait(), 0) << server_->err();
  EXPECT_FALSE(std::filesystem::exists(Path("address")));
  EXPECT_THAT(server_->err(), HasSubstr("measured the K basis"));

  Serve(Ladder());
  EXPECT_THAT(server_->err(), HasSubstr("read the K basis from"));
  EXPECT_EQ(Generate(call).choices(0).text(), first.choices(0).text());
}

TEST_F(EndToEndTest, AnInterruptedClientLeavesNothingBehind) {
  Serve(Ladder());
  const auto client = Start(kLongCall);
  ASSERT_TRUE(WaitFor([&] { return !client->out().empty(); })) << client->err();
  client->Signal(SIGINT);
  EXPECT_EQ(client->Wait(), 130);
  EXPECT_TRUE(WaitFor([&] { return Empty(); }));
  EXPECT_THAT(Metrics(), HasSubstr("strata_requests_total{finish_reason=\"cancelled\"} 1\n"));
}

TEST_F(EndToEndTest, AKilledClientLeavesNothingBehind) {
  Serve(Ladder());
  const auto client = Start(kLongCall);
  ASSERT_TRUE(WaitFor([&] { return !client->out().empty(); })) << client->err();
  client->Signal(SIGKILL);
  EXPECT_EQ(client->Wait(), 128 + SIGKILL);
  EXPECT_TRUE(WaitFor([&] { return Empty(); }));
}

// Streams cancelled before their first event, after it, and after some of the text, sixteen at a
// time, with blocks of every tier in flight.
TEST_F(EndToEndTest, AThousandCancelledStreamsLeaveNothingBehind) {
  Serve(Ladder());
  const auto stub = v1::InferenceService::NewStub(
      grpc::CreateChannel(address_, grpc::InsecureChannelCredentials()));
  struct Stream {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::GenerateEvent>> reader;
  };
  v1::GenerateRequest request;
  request.set_text(std::string(600, 'x'));
  request.mutable_stop()->set_max_tokens(3000);
  request.mutable_stop()->set_ignore_eos(true);
  std::deque<Stream> streams;
  int cancelled = 0;
  const auto cancel_oldest = [&] {
    Stream& stream = streams.front();
    v1::GenerateEvent event;
    for (int i = 0; i < cancelled % 3 * 2 && stream.reader->Read(&event); ++i) continue;
    stream.context.TryCancel();
    while (stream.reader->Read(&event)) continue;
    const grpc::StatusCode code = stream.reader->Finish().error_code();
    EXPECT_TRUE(code == grpc::StatusCode::CANCELLED || code == grpc::StatusCode::OK) << code;
    streams.pop_front();
    ++cancelled;
  };
  while (cancelled < 1000) {
    if (cancelled + static_cast<int>(streams.size()) < 1000 && streams.size() < 16) {
      Stream& stream = streams.emplace_back();
      stream.reader = stub->Generate(&stream.context, request);
    } else {
      cancel_oldest();
    }
  }
  EXPECT_TRUE(WaitFor([&] { return Empty(); })) << Metrics();
  EXPECT_THAT(Metrics(), HasSubstr("strata_requests_running 0\n"));
}

TEST_F(EndToEndTest, TermLetsAStreamFinishAndRefusesOthers) {
  Serve();
  const auto client = Start({"generate", "-n", "1500", "--ignore-eos", "-q", "once"});
  ASSERT_TRUE(WaitFor([&] { return !client->out().empty(); })) << client->err();
  server_->Signal(SIGTERM);
  ASSERT_TRUE(WaitFor([&] { return absl::StrContains(server_->err(), "draining"); }));
  // Draining, or gone already where the stream was quick.
  const auto late = Start({"generate", "-q", "late"});
  EXPECT_EQ(late->Wait(), 3) << late->err();
  EXPECT_THAT(late->err(), HasSubstr("UNAVAILABLE"));
  EXPECT_EQ(client->Wait(), 0) << client->err();
  EXPECT_EQ(server_->Wait(), 0) << server_->err();
  EXPECT_THAT(server_->err(), HasSubstr("drained"));
}

TEST_F(EndToEndTest, TheDrainTimeoutCutsAStreamOff) {
  Serve({"--drain-timeout=0"});
  const auto client = Start(kLongCall);
  ASSERT_TRUE(WaitFor([&] { return !client->out().empty(); })) << client->err();
  server_->Signal(SIGTERM);
  EXPECT_EQ(server_->Wait(), 3) << server_->err();
  EXPECT_EQ(client->Wait(), 3);
  EXPECT_THAT(client->err(), HasSubstr("drain timeout"));
}

TEST_F(EndToEndTest, TopPrintsReports) {
  Serve(Ladder());
  const auto json = Start({"top", "--once", "--json", "--interval=100ms"});
  EXPECT_EQ(json->Wait(), 0) << json->err();
  v1::CacheStats stats;
  EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(json->out(), &stats).ok());
  EXPECT_EQ(stats.tiers_size(), 3);
  const auto text = Start({"top", "--once", "--interval=100ms"});
  EXPECT_EQ(text->Wait(), 0) << text->err();
  EXPECT_THAT(text->out(), HasSubstr("the cache is empty"));
  EXPECT_THAT(text->out(), testing::Not(HasSubstr("\033")));
  const auto wrong = Start({"top", "--once", "--interval=1ms"});
  EXPECT_EQ(wrong->Wait(), 1);
  EXPECT_THAT(wrong->err(), HasSubstr("interval"));
  // Without an end of its own it goes on until the server ends it.
  const auto endless = Start({"top", "--interval=100ms"});
  ASSERT_TRUE(WaitFor([&] { return endless->out().size() > 2 * text->out().size(); }));
  server_->Signal(SIGTERM);
  EXPECT_EQ(endless->Wait(), 3) << endless->err();
  EXPECT_EQ(server_->Wait(), 0) << server_->err();
}

// On a terminal it takes the screen, and gives it back as it was whether it ends by q or ctrl-C.
TEST_F(EndToEndTest, TopGivesTheTerminalBack) {
  Serve();
  for (const char key : {'q', '\003'}) {
    int terminal = -1;
    winsize size{24, 80, 0, 0};
    const std::string server = "--server=" + address_;
    const pid_t child = forkpty(&terminal, nullptr, nullptr, &size);
    if (child == 0) {
      execl(STRATA_BINARY, STRATA_BINARY, server.c_str(), "top", "--interval=100ms", nullptr);
      _exit(127);
    }
    std::string shown;
    const auto read_until = [&](absl::string_view what) {
      return WaitFor([&] {
        char buffer[4096];
        const ssize_t count = read(terminal, buffer, sizeof(buffer));
        if (count > 0) shown.append(buffer, static_cast<size_t>(count));
        return absl::StrContains(shown, what);
      });
    };
    ASSERT_TRUE(read_until("q quits")) << shown;
    EXPECT_THAT(shown, HasSubstr("\033[?1049h"));
    termios state{};
    tcgetattr(terminal, &state);
    EXPECT_EQ(state.c_lflag & ICANON, 0u);
    EXPECT_EQ(write(terminal, &key, 1), 1);
    EXPECT_TRUE(read_until("\033[?25h\033[?1049l")) << shown;
    int status = 0;
    ASSERT_TRUE(WaitFor([&] { return waitpid(child, &status, WNOHANG) == child; }));
    EXPECT_EQ(WEXITSTATUS(status), key == 'q' ? 0 : 130);
    tcgetattr(terminal, &state);
    EXPECT_NE(state.c_lflag & ICANON, 0u);
    EXPECT_NE(state.c_lflag & ECHO, 0u);
    close(terminal);
  }
}

TEST_F(EndToEndTest, WhatCannotStartSaysWhy) {
  auto server = Launch({"--model=" + Path("tiny.gguf"), "--hot-byte=1"});
  EXPECT_EQ(server->Wait(), 2);
  EXPECT_THAT(server->err(), HasSubstr("--hot-byte"));

  server = Launch({"--model=" + Path("tiny.gguf"), "--piece-tokens=63"});
  EXPECT_EQ(server->Wait(), 2);
  EXPECT_THAT(server->err(), HasSubstr("piece-tokens"));

  std::ofstream(Path("broken.gguf")) << "GGUF and nothing more";
  server = Launch({"--model=" + Path("broken.gguf")});
  EXPECT_EQ(server->Wait(), 1);
  EXPECT_THAT(server->err(), HasSubstr("broken.gguf"));

  server = Launch({"--model=" + Path("tiny.gguf"), "--hot-bytes=1KiB"});
  EXPECT_EQ(server->Wait(), 1);
  EXPECT_THAT(server->err(), HasSubstr("hot_bytes"));

  Serve();
  const std::vector<std::string> second = {STRATA_SERVER_BINARY, "--model=" + Path("tiny.gguf"),
                                           "--listen=" + address_, "--metrics-listen=none"};
  server = std::make_unique<Process>(second, Path("second"));
  EXPECT_EQ(server->Wait(), 1);
  EXPECT_THAT(server->err(), HasSubstr(address_));
}

// No GPU is visible to these servers, whatever the machine has and the build can do.
TEST_F(EndToEndTest, WithoutAGpuAutoServesOnTheCpuAndSaysWhy) {
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  Serve({"--device=auto"});
  EXPECT_THAT(
      server_->err() + server_->out(),
      testing::ContainsRegex("computing on cpu/[a-z0-9]+: no GPU can be used \\([^\n]+\\)"));
  EXPECT_EQ(Generate({"-n", "3", "--ignore-eos", "hello"}).usage().completion_tokens(), 3u);
  const auto info = Start({"info", "--json"});
  EXPECT_EQ(info->Wait(), 0) << info->err();
  EXPECT_THAT(info->out(), HasSubstr("\"cpu\""));
  EXPECT_THAT(Metrics(), HasSubstr("strata_device_info{backend=\"cpu/"));
  unsetenv("CUDA_VISIBLE_DEVICES");
}

TEST_F(EndToEndTest, WithoutAGpuCudaFailsWithOneSentence) {
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  for (const std::string device : {"cuda", "cuda:3"}) {
    const auto server = Launch({"--model=" + Path("tiny.gguf"), "--device=" + device});
    EXPECT_EQ(server->Wait(), 1);
    const std::string log = server->err() + server->out();
    const std::string sentence = "cannot start: device: " + device + " cannot be used: ";
    EXPECT_THAT(log, HasSubstr(sentence));
    // It is the last line.
    const size_t at = log.find(sentence);
    EXPECT_EQ(at == std::string::npos ? at : log.find('\n', at), log.size() - 1);
  }
  unsetenv("CUDA_VISIBLE_DEVICES");
}

TEST_F(EndToEndTest, ErrorsReachTheUser) {
  Serve({"--max-context=128"});
  auto client = Start({"generate", "--top-p=7", "x"});
  EXPECT_EQ(client->Wait(), 1);
  EXPECT_THAT(client->err(), HasSubstr("sampling.top_p"));
  client = Start({"generate", "--model=other", "x"});
  EXPECT_EQ(client->Wait(), 1);
  EXPECT_THAT(client->err(), HasSubstr("NOT_FOUND"));
  client = Start({"generate", std::string(200, 'x')});
  EXPECT_EQ(client->Wait(), 1);
  EXPECT_THAT(client->err(), HasSubstr("CONTEXT_LENGTH_EXCEEDED"));
  client = Start({"generate", "--tempereture=1", "x"});
  EXPECT_EQ(client->Wait(), 2);
}

}  // namespace
}  // namespace strata
