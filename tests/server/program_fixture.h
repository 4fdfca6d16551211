#pragma once

// The real programs, started as an operator and a user would, on a model of random weights.

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"
#include "httplib.h"
#include "strata/v1/inference.pb.h"
#include "tests/testing/patience.h"
#include "tests/testing/test_folder.h"
#include "tests/testing/tiny_model.h"

namespace strata {

template <typename Condition>
bool WaitFor(const Condition& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

inline std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}

// A child with its output in files. Killed if the test ends before it does.
class Process {
 public:
  Process(std::vector<std::string> command, const std::string& output)
      : out_(output + ".out"), err_(output + ".err") {
    std::vector<char*> arguments;
    for (std::string& argument : command) arguments.push_back(argument.data());
    arguments.push_back(nullptr);
    pid_ = fork();
    if (pid_ != 0) return;
    dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
    dup2(open(out_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDOUT_FILENO);
    dup2(open(err_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
    execv(arguments[0], arguments.data());
    _exit(127);
  }
  ~Process() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void Signal(int signal) { kill(pid_, signal); }
  // The exit status; 128 + N for a death by signal N, -1 if it does not end.
  int Wait() {
    if (!WaitFor([&] { return Ended(); })) return -1;
    return WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
  }
  bool Ended() {
    if (pid_ > 0 && waitpid(pid_, &status_, WNOHANG) == pid_) pid_ = 0;
    return pid_ == 0;
  }
  std::string out() const { return ReadFile(out_); }
  std::string err() const { return ReadFile(err_); }

 private:
  pid_t pid_ = -1;  // 0 once it has ended
  int status_ = 0;
  std::string out_;
  std::string err_;
};

class EndToEndTest : public testing::Test {
 protected:
  EndToEndTest() { WriteTinyModel({}, Path("tiny.gguf")); }

  std::string Path(const std::string& name) const { return folder_.Path(name); }

  std::unique_ptr<Process> Launch(const std::vector<std::string>& options) {
    std::vector<std::string> command = {STRATA_SERVER_BINARY,
                                        "--listen=127.0.0.1:0",
                                        "--metrics-listen=127.0.0.1:0",
                                        "--threads=1",
                                        "--max-sequences=4",
                                        "--basis-cache=" + folder_.path(),
                                        "--address-file=" + Path("address")};
    command.insert(command.end(), options.begin(), options.end());
    return std::make_unique<Process>(command, Path("server"));
  }
  // Starts the server and waits until it is ready.
  void Serve(std::vector<std::string> options = {}) {
    options.push_back("--model=" + Path("tiny.gguf"));
    server_ = Launch(options);
    bool ready = false;
    const auto ready_or_gone = [&] {
      if (server_->Ended()) return true;
      std::ifstream file(Path("address"));
      if (!(file >> address_ >> http_)) return false;
      const auto answer = httplib::Client("http://" + http_).Get("/readyz");
      ready = answer && answer->status == 200;
      return ready;
    };
    WaitFor(ready_or_gone);
    ASSERT_TRUE(ready) << server_->err();
  }
  std::unique_ptr<Process> Start(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {STRATA_BINARY, "--server=" + address_});
    return std::make_unique<Process>(arguments, Path(absl::StrCat("client", clients_++)));
  }
  // Generates and returns the whole result.
  v1::GenerateResult Generate(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"generate", "--json"});
    const auto client = Start(arguments);
    EXPECT_EQ(client->Wait(), 0) << client->err();
    v1::GenerateResult result;
    EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(client->out(), &result).ok());
    return result;
  }
  v1::CacheStats Stats() {
    const auto client = Start({"stats", "--json"});
    EXPECT_EQ(client->Wait(), 0) << client->err();
    v1::CacheStats stats;
    EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(client->out(), &stats).ok());
    return stats;
  }
  // No request runs and no tier holds anything.
  bool Empty() {
    const v1::CacheStats stats = Stats();
    uint64_t used = stats.running() + stats.waiting();
    for (const v1::TierStats& tier : stats.tiers()) {
      used += tier.used_bytes() + tier.reserved_bytes();
    }
    return used == 0;
  }
  std::string Metrics() {
    const auto answer = httplib::Client("http://" + http_).Get("/metrics");
    return answer ? answer->body : "";
  }

  // Small windows, so that a prompt of a few hundred tokens passes through every tier.
  std::vector<std::string> Ladder() const {
    return {"--piece-tokens=64",           "--hot-window=64",    "--warm-window=64",
            "--cold-path=" + Path("cold"), "--cold-bytes=64MiB", "--cold-k-layers=0",
            "--hot-bytes=32MiB",           "--warm-bytes=32MiB"};
  }

  const TestFolder folder_;  // outlives the processes
  std::string address_;
  std::string http_;
  int clients_ = 0;
  std::unique_ptr<Process> server_;
};

}  // namespace strata
