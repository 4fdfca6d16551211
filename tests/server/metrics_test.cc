#include <cstdlib>
#include <fstream>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "httplib.h"
#include "prometheus/text_serializer.h"
#include "server/metrics/engine_metrics.h"
#include "server/metrics/http_server.h"
#include "server/rpc/call_metrics.h"
#include "tests/server/fake_engine.h"
#include "tests/testing/test_folder.h"

namespace strata {
namespace {

using testing::HasSubstr;
using testing::Not;

const MetricLabels kLabels = {"1", "abc", "m", "llama", "Q4_1", "cpu/scalar", "cpu"};

std::string Text(const prometheus::Collectable& source) {
  return prometheus::TextSerializer().Serialize(source.Collect());
}

// "name{labels}" of every sample.
std::set<std::string> SeriesOf(const std::string& text) {
  std::set<std::string> series;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty() && line[0] != '#') series.insert(line.substr(0, line.rfind(' ')));
  }
  return series;
}

TEST(EngineMetricsTest, EverySeriesExistsBeforeAnythingHappened) {
  FakeEngine engine;
  const std::string before = Text(EngineMetrics(&engine, kLabels));
  for (const char* series :
       {"strata_requests_total{finish_reason=\"eos\"}",
        "strata_requests_total{finish_reason=\"error\"}",
        "strata_requests_rejected_total{reason=\"queue_full\"}",
        "strata_kv_tier_used_bytes{tier=\"cold\",format=\"i2\"}",
        "strata_kv_link_bytes_total{source=\"cold\",target=\"hot\"}",
        "strata_kv_demoted_pages_total{source=\"warm\",target=\"cold\"}",
        "strata_io_submitted_total{op=\"write\"}", "strata_io_errors_total{op=\"read\"}",
        "strata_io_latency_seconds_count{op=\"write\"}",
        "strata_kv_fetch_wait_seconds_count{tier=\"cold\"}",
        "strata_kv_integrity_failures_total{tier=\"cold\",kind=\"short\"}",
        "strata_kv_tier_hits_total{tier=\"cold\"}",
        "strata_kv_evicted_pages_total{source=\"warm\",target=\"none\"}",
        "strata_kv_quantization_relative_error{tier=\"cold\",tensor=\"v\"}",
        "strata_step_seconds_count{phase=\"decode\"}"}) {
    EXPECT_THAT(before, HasSubstr(std::string(series) + " 0\n"));
  }
}

// Each field of the snapshot has a value of its own, so that a mix-up shows.
TEST(EngineMetricsTest, ShowsTheSnapshot) {
  EngineSnapshot s;
  s.running = 1;
  s.waiting = 2;
  s.finished = {3, 4, 5, 6, 7};
  s.cancelled = 8;
  s.deadline_exceeded = 9;
  s.failed = 10;
  s.rejected_queue_full = 11;
  s.rejected_capacity = 12;
  s.rejected_queue_timeout = 13;
  s.prompt_tokens = 14;
  s.generation_tokens = 15;
  s.time_to_first_token = {{0.5, 1}, {1, 2, 3}, 7.5};
  for (size_t tier = 0; tier < kTierCount; ++tier) {
    TierSnapshot& t = s.cache.tiers[tier];
    t.capacity_bytes = 1000 + tier;
    t.used_bytes = 250 + tier;
    t.reserved_bytes = 300 + tier;
    t.tokens = 400 + tier;
    t.pages = 500 + tier;
    t.free_pages = 600 + tier;
    t.f16_bytes = 2000 + tier;
    t.k_bits_per_value = 16.0 / static_cast<double>(1 << tier);
    t.v_bits_per_value = 8.0 / static_cast<double>(1 << tier);
    t.lookups = 800 + tier;
    t.hits = 900 + tier;
    t.dropped_pages = 1100 + tier;
    t.attended_tokens = 700 + tier;
  }
  s.cache.links[1] = {20, 80, 3, 1500000000};
  s.cache.demoted_pages[0] = 21;
  s.cache.integrity_failures = {22, 27};
  s.cache.io_reads_submitted = 23;
  s.cache.io_writes_completed = 24;
  s.cache.io_read_errors = 25;
  s.cache.io_write_errors = 28;
  using std::chrono::milliseconds;
  s.cache.quantize.Observe(milliseconds(250));
  for (int i = 0; i < 2; ++i) s.cache.fetch_wait.Observe(milliseconds(2));
  for (int i = 0; i < 3; ++i) s.cache.move_wait.Observe(milliseconds(500));
  for (int i = 0; i < 4; ++i) s.cache.io_read_latency.Observe(milliseconds(1));
  for (int i = 0; i < 5; ++i) s.cache.io_write_latency.Observe(std::chrono::seconds(11));
  s.cache.k_relative_error = {0, 0.0625, 0.25};
  s.cache.v_relative_error = {0, 0.125, 0.5};
  s.cache.cold_degraded = true;
  s.cache.io_engine = "threads";
  FakeEngine engine;
  engine.set_snapshot(s);
  const std::string text = Text(EngineMetrics(&engine, kLabels));
  for (const char* sample :
       {"strata_requests_running 1",
        "strata_requests_waiting 2",
        "strata_requests_running_limit 16",
        "strata_requests_waiting_limit 256",
        "strata_requests_total{finish_reason=\"eos\"} 3",
        "strata_requests_total{finish_reason=\"stop\"} 4",
        "strata_requests_total{finish_reason=\"length\"} 5",
        "strata_requests_total{finish_reason=\"context\"} 6",
        "strata_requests_total{finish_reason=\"time_limit\"} 7",
        "strata_requests_total{finish_reason=\"cancelled\"} 8",
        "strata_requests_total{finish_reason=\"deadline\"} 9",
        "strata_requests_total{finish_reason=\"error\"} 10",
        "strata_requests_rejected_total{reason=\"queue_full\"} 11",
        "strata_requests_rejected_total{reason=\"capacity\"} 12",
        "strata_requests_rejected_total{reason=\"queue_timeout\"} 13",
        "strata_prompt_tokens_total 14",
        "strata_generation_tokens_total 15",
        "strata_time_to_first_token_seconds_bucket{le=\"1\"} 3",
        "strata_time_to_first_token_seconds_bucket{le=\"+Inf\"} 6",
        "strata_time_to_first_token_seconds_sum 7.5",
        "strata_kv_tier_capacity_bytes{tier=\"hot\",format=\"f16\"} 1000",
        "strata_kv_tier_used_bytes{tier=\"warm\",format=\"i4\"} 251",
        "strata_kv_tier_used_bytes{tier=\"cold\",format=\"i2\"} 252",
        "strata_kv_tier_reserved_bytes{tier=\"cold\",format=\"i2\"} 302",
        "strata_kv_tier_tokens{tier=\"warm\"} 401",
        "strata_kv_tier_pages{tier=\"warm\"} 501",
        "strata_kv_tier_free_pages{tier=\"cold\"} 602",
        "strata_kv_tier_f16_bytes{tier=\"warm\",format=\"i4\"} 2001",
        "strata_kv_bytes_per_value{tier=\"cold\",tensor=\"k\"} 0.5",
        "strata_kv_bytes_per_value{tier=\"cold\",tensor=\"v\"} 0.25",
        "strata_kv_tier_lookups_total{tier=\"hot\"} 800",
        "strata_kv_tier_hits_total{tier=\"cold\"} 902",
        "strata_kv_evicted_pages_total{source=\"warm\",target=\"none\"} 1101",
        "strata_kv_attended_tokens_total{tier=\"cold\"} 702",
        "strata_kv_cache_usage_ratio 0.25",
        "strata_kv_link_bytes_total{source=\"warm\",target=\"cold\"} 20",
        "strata_kv_link_f16_bytes_total{source=\"warm\",target=\"cold\"} 80",
        "strata_kv_link_seconds_total{source=\"warm\",target=\"cold\"} 1.5",
        "strata_kv_demoted_pages_total{source=\"hot\",target=\"warm\"} 21",
        "strata_kv_integrity_failures_total{tier=\"cold\",kind=\"checksum\"} 22",
        "strata_kv_integrity_failures_total{tier=\"cold\",kind=\"short\"} 27",
        "strata_io_submitted_total{op=\"read\"} 23",
        "strata_io_completed_total{op=\"write\"} 24",
        "strata_io_errors_total{op=\"read\"} 25",
        "strata_io_errors_total{op=\"write\"} 28",
        "strata_io_latency_seconds_bucket{op=\"read\",le=\"0.001\"} 4",
        "strata_io_latency_seconds_bucket{op=\"write\",le=\"10\"} 0",
        "strata_io_latency_seconds_bucket{op=\"write\",le=\"+Inf\"} 5",
        "strata_io_latency_seconds_sum{op=\"write\"} 55",
        "strata_kv_quantize_seconds_count 1",
        "strata_kv_quantize_seconds_sum 0.25",
        "strata_kv_fetch_wait_seconds_bucket{tier=\"cold\",le=\"0.0025\"} 2",
        "strata_kv_move_wait_seconds_sum 1.5",
        "strata_kv_quantization_relative_error{tier=\"warm\",tensor=\"k\"} 0.0625",
        "strata_kv_quantization_relative_error{tier=\"cold\",tensor=\"v\"} 0.5",
        "strata_kv_cold_degraded 1",
        "strata_io_engine_info{engine=\"threads\"} 1"}) {
    EXPECT_THAT(text, HasSubstr(std::string(sample) + "\n"));
  }
  FakeEngine idle;
  idle.set_snapshot([] {
    EngineSnapshot snapshot;
    snapshot.time_to_first_token = {{0.5, 1}, {0, 0, 0}, 0};
    snapshot.cache.io_engine = "threads";
    return snapshot;
  }());
  EXPECT_EQ(SeriesOf(Text(EngineMetrics(&idle, kLabels))), SeriesOf(text));
}

double Sample(const std::string& text, const std::string& name) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    double value = 0;
    if (absl::StartsWith(line, name + " ") &&
        absl::SimpleAtod(line.substr(name.size() + 1), &value)) {
      return value;
    }
  }
  ADD_FAILURE() << "no sample " << name;
  return 0;
}

TEST(ProcessMetricsTest, TellsOfThisProcess) {
  const std::string text = Text(ProcessMetrics());
  const double page = 4096;
  EXPECT_GT(Sample(text, "process_resident_memory_bytes"), page);
  EXPECT_GT(Sample(text, "process_virtual_memory_bytes"),
            Sample(text, "process_resident_memory_bytes"));
  EXPECT_GT(Sample(text, "process_cpu_seconds_total"), 0);
  const double before = Sample(text, "process_open_fds");
  std::ifstream one_more("/proc/self/stat");
  EXPECT_EQ(Sample(Text(ProcessMetrics()), "process_open_fds"), before + 1);
  const double now = static_cast<double>(time(nullptr));
  EXPECT_LE(Sample(text, "process_start_time_seconds"), now + 1);
  EXPECT_GT(Sample(text, "process_start_time_seconds"), now - 3600);
}

class HttpTest : public testing::Test {
 protected:
  HttpTest() {
    auto server = MetricsHttpServer::Start(
        "127.0.0.1:0", {[this] { return live_.load(); }, [this] { return ready_.load(); }},
        [] { return std::string(R"({"running":3})"); });
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  httplib::Result Get(const std::string& path) {
    return httplib::Client("http://" + server_->address()).Get(path);
  }

  std::atomic<bool> live_{true};
  std::atomic<bool> ready_{false};
  std::unique_ptr<MetricsHttpServer> server_;
};

TEST_F(HttpTest, ProbesFollowTheirStates) {
  EXPECT_EQ(Get("/healthz")->status, 200);
  EXPECT_EQ(Get("/readyz")->status, 503);
  ready_ = true;
  live_ = false;
  EXPECT_EQ(Get("/healthz")->status, 503);
  EXPECT_EQ(Get("/readyz")->status, 200);
  EXPECT_EQ(Get("/other")->status, 404);
}

TEST_F(HttpTest, ThePageRunsItsOwnScriptAndNoOther) {
  const auto answer = Get("/");
  ASSERT_EQ(answer->status, 200);
  EXPECT_EQ(answer->get_header_value("Content-Type"), "text/html; charset=utf-8");
  const std::string policy = answer->get_header_value("Content-Security-Policy");
  for (const char* part : {"default-src 'none'", "connect-src 'self'", "script-src 'nonce-",
                           "frame-ancestors 'none'"}) {
    EXPECT_THAT(policy, HasSubstr(part));
  }
  EXPECT_THAT(policy, Not(HasSubstr("unsafe")));
  const size_t at = policy.find("'nonce-") + 7;
  const std::string nonce = policy.substr(at, policy.find('\'', at) - at);
  EXPECT_EQ(nonce.size(), 32u);
  EXPECT_THAT(answer->body, HasSubstr("<script nonce=\"" + nonce + "\">"));
  EXPECT_THAT(answer->body, HasSubstr("<style nonce=\"" + nonce + "\">"));
  EXPECT_NE(Get("/")->get_header_value("Content-Security-Policy"), policy);
  // Everything is in it: nothing is fetched from anywhere but this server.
  for (const char* outside : {"http://", "https://", " src=", "@import", "url("}) {
    EXPECT_THAT(answer->body, Not(HasSubstr(outside)));
  }
}

TEST_F(HttpTest, StatsAreServedFresh) {
  const auto answer = Get("/stats.json");
  ASSERT_EQ(answer->status, 200);
  EXPECT_EQ(answer->body, R"({"running":3})");
  EXPECT_EQ(answer->get_header_value("Content-Type"), "application/json");
  EXPECT_EQ(answer->get_header_value("Cache-Control"), "no-store");
}

// A page that stays open must not keep a probe waiting.
TEST_F(HttpTest, ConnectionsAreClosedAfterAnAnswer) {
  std::vector<std::unique_ptr<httplib::Client>> pages;
  for (int i = 0; i < 8; ++i) {
    pages.push_back(std::make_unique<httplib::Client>("http://" + server_->address()));
    pages.back()->set_keep_alive(true);
    EXPECT_EQ(pages.back()->Get("/stats.json")->get_header_value("Connection"), "close");
  }
  EXPECT_EQ(Get("/healthz")->status, 200);
}

TEST_F(HttpTest, SourcesThatAreGoneAreLeftOut) {
  auto source = std::make_shared<ProcessMetrics>();
  server_->Add(source);
  EXPECT_THAT(Get("/metrics")->body, HasSubstr("process_cpu_seconds_total"));
  source.reset();
  EXPECT_EQ(Get("/metrics")->body, "");
}

TEST_F(HttpTest, ThePortIsNotShared) {
  const auto second = MetricsHttpServer::Start(server_->address(), {}, {});
  EXPECT_TRUE(absl::IsUnavailable(second.status()));
}

TEST_F(HttpTest, PromtoolHasNothingToSay) {
  if (std::system("promtool --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "no promtool";
  FakeEngine engine;
  const auto engine_metrics = std::make_shared<EngineMetrics>(&engine, kLabels);
  const auto process = std::make_shared<ProcessMetrics>();
  const rpc::CallMetrics calls;
  server_->Add(calls.registry());
  server_->Add(engine_metrics);
  server_->Add(process);
  const auto response = Get("/metrics");
  ASSERT_EQ(response->status, 200);
  EXPECT_THAT(response->body, HasSubstr("grpc_server_started_total"));
  const TestFolder folder;
  const std::string path = folder.Put("metrics.txt", response->body);
  const std::string complaints = path + ".out";
  const std::string command = "promtool check metrics < " + path + " > " + complaints + " 2>&1";
  const int status = std::system(command.c_str());
  std::ifstream file(complaints);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_EQ(status, 0) << text;
  EXPECT_EQ(text, "");
}

}  // namespace
}  // namespace strata
