#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/json_util.h"
#include "google/protobuf/util/time_util.h"
#include "gtest/gtest.h"
#include "tools/cli/styled_line.h"
#include "tools/cli/top_frame.h"
#include "tools/cli/top_view.h"

namespace strata::cli {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::DoubleNear;
using testing::Each;
using testing::HasSubstr;
using testing::Not;

constexpr FrameStyle kPlain{.color = false, .unicode = true, .keys = true};

v1::Distribution Distribution(std::vector<double> bounds, std::vector<uint64_t> counts) {
  v1::Distribution distribution;
  distribution.mutable_bounds()->Add(bounds.begin(), bounds.end());
  distribution.mutable_counts()->Add(counts.begin(), counts.end());
  return distribution;
}

// A server that has run for `seconds`: everything grows with time.
v1::CacheStats Report(int seconds) {
  v1::CacheStats stats;
  EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(R"({
    "tiers": [
      {"tier": "TIER_HOT", "layout": "f16", "capacity_bytes": "25165824", "used_bytes": "12582912",
       "reserved_bytes": "18874368", "tokens": "273", "bits_per_value": 16,
       "bytes_f16_equivalent": "12582912"},
      {"tier": "TIER_WARM", "layout": "i4", "capacity_bytes": "8388608", "used_bytes": "4194304",
       "reserved_bytes": "4194304", "tokens": "1024", "bits_per_value": 4.75,
       "bytes_f16_equivalent": "14680064", "k_relative_error": 0.06, "v_relative_error": 0.07},
      {"tier": "TIER_COLD", "layout": "i2+i4", "capacity_bytes": "67108864", "used_bytes": "1048576",
       "reserved_bytes": "2097152", "tokens": "2048", "bits_per_value": 2.9,
       "bytes_f16_equivalent": "5242880", "k_relative_error": 0.21, "v_relative_error": 0.25}],
    "links": [{"from": "TIER_HOT", "to": "TIER_WARM"}, {"from": "TIER_WARM", "to": "TIER_COLD"},
              {"from": "TIER_COLD", "to": "TIER_HOT"}],
    "running": 2, "waiting": 1, "model": "SmolLM2"})",
                                                          &stats)
                  .ok());
  const auto grown = static_cast<uint64_t>(seconds);
  *stats.mutable_time() = google::protobuf::util::TimeUtil::SecondsToTimestamp(1000 + seconds);
  stats.set_generation_tokens(80 * grown);
  stats.set_prompt_tokens(500 * grown);
  for (int i = 0; i < 3; ++i) {
    stats.mutable_links(i)->set_bytes((i + 1) * 1048576 * grown);
    stats.mutable_links(i)->set_bytes_f16_equivalent((i + 1) * 4 * 1048576 * grown);
  }
  stats.mutable_tiers(2)->set_lookups(200 * grown);
  stats.mutable_tiers(2)->set_hits(150 * grown);
  stats.mutable_step()->set_sum_seconds(0.9 * seconds);
  stats.mutable_fetch_wait()->set_sum_seconds(0.09 * seconds);
  *stats.mutable_time_to_first_token() = Distribution({0.5, 1, 2}, {0, grown, 0, 0});
  *stats.mutable_inter_token_latency() = Distribution({0.01, 0.02}, {80 * grown, 0, 0});
  stats.set_requests_finished(1234);
  return stats;
}

StatsHistory History(int reports) {
  StatsHistory history;
  for (int i = 0; i < reports; ++i) history.Add(Report(i));
  return history;
}

TEST(QuantileTest, IsLinearWithinTheBucket) {
  const v1::Distribution none = Distribution({1, 2}, {0, 0, 0});
  const v1::Distribution some = Distribution({1, 2}, {5, 10, 0});
  EXPECT_EQ(Quantile(none, none, 0.5), std::nullopt);
  EXPECT_EQ(Quantile(some, some, 0.5), std::nullopt);
  EXPECT_THAT(*Quantile(none, some, 0.5), DoubleNear(1.25, 1e-12));
  EXPECT_THAT(*Quantile({}, some, 1), DoubleNear(2, 1e-12));
  // Beyond the last bound nothing more is known.
  EXPECT_EQ(*Quantile(none, Distribution({1, 2}, {0, 0, 4}), 0.5), 2);
  EXPECT_THAT(*Quantile(some, Distribution({1, 2}, {9, 10, 0}), 0.5), DoubleNear(0.5, 1e-12));
}

TEST(StatsHistoryTest, RatesAreOfTheLatestSeconds) {
  StatsHistory history = History(11);
  v1::CacheStats idle = Report(10);
  *idle.mutable_time() = google::protobuf::util::TimeUtil::SecondsToTimestamp(1000 + 11);
  const TopView busy = history.View("here:1");
  EXPECT_THAT(busy.generated_rate, DoubleNear(80, 1e-9));
  EXPECT_THAT(busy.prompt_rate, DoubleNear(500, 1e-9));
  EXPECT_THAT(busy.links[2].rate, DoubleNear(3 * 1048576, 1e-6));
  EXPECT_THAT(busy.links[2].f16_rate, DoubleNear(12 * 1048576, 1e-6));
  EXPECT_THAT(busy.wait_share, DoubleNear(0.1, 1e-9));
  EXPECT_THAT(*busy.staged_share, DoubleNear(0.75, 1e-9));
  EXPECT_THAT(*busy.first_token.median, DoubleNear(0.75, 1e-9));
  EXPECT_TRUE(busy.problems.empty());
  history.Add(idle);
  EXPECT_THAT(history.View("here:1").generated_rate, DoubleNear(80 * 4 / 5.0, 1e-9));
}

TEST(StatsHistoryTest, ForgetsTheServerBeforeARestart) {
  StatsHistory history = History(11);
  history.Add(Report(3));
  EXPECT_EQ(history.size(), 1u);
  EXPECT_EQ(history.View("x").generated_rate, 0);
}

TEST(StatsHistoryTest, IsBounded) { EXPECT_EQ(History(500).size(), 120u); }

TEST(StatsHistoryTest, NamesWhatIsWrongWorstFirst) {
  StatsHistory history = History(3);
  v1::CacheStats stats = Report(3);
  stats.set_stalled(true);
  stats.set_cold_degraded(true);
  stats.set_integrity_failures(2);
  stats.set_io_errors(7);
  stats.set_requests_failed(1);
  stats.set_requests_rejected(4);
  stats.mutable_tiers(0)->set_reserved_bytes(25165824);
  stats.mutable_fetch_wait()->set_sum_seconds(3);
  history.Add(stats);
  std::vector<std::string> texts;
  for (const TopProblem& problem : history.View("x").problems) {
    texts.push_back(absl::StrCat(problem.bad ? "bad: " : "look: ", problem.text));
  }
  EXPECT_THAT(texts, testing::ElementsAre(
                         "bad: the engine has work but makes no step",
                         "bad: the disk fails, hangs or is full: blocks stay in the warm tier",
                         "bad: 2 damaged records read lately",
                         "bad: 7 failed reads or writes lately", "bad: 1 requests failed lately",
                         "look: 1 requests wait: promised to others already: hot",
                         "look: steps spend more than 30 % of their time waiting for the disk",
                         "look: 4 requests refused lately"));
}

TEST(TopFrameTest, ShowsEverythingAt80x24) {
  const auto lines = DrawTop(History(20).View("127.0.0.1:50051"), {24, 80}, kPlain);
  ASSERT_LE(lines.size(), 24u);
  const std::string text = absl::StrJoin(lines, "\n");
  for (const char* part : {"SmolLM2 at 127.0.0.1:50051",
                           "all is well",
                           "3,345 tokens in 17.0 MiB",
                           "31.0 MiB of F16",
                           "45 % saved",
                           "12.0 of 24.0 MiB",
                           "50 %",
                           "1,024",
                           "4.8",
                           "71 %",
                           "warm → cold",
                           "cold → attention",
                           "3.0 MiB/s",
                           "12.0 MiB/s",
                           "2 running",
                           "1 waiting",
                           "1,234 done",
                           "80.0 tokens/s",
                           "500.0 tokens/s",
                           "first token 750 ms",
                           "fine",
                           "wait for it 10.0 % of their time",
                           "75 % of pages staged",
                           "0 damaged records",
                           "warm K 0.06 V 0.07",
                           "cold K 0.21 V 0.25",
                           "TIER FORMAT ",
                           "q quits"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(TopFrameTest, FitsEverySize) {
  StatsHistory history = History(200);
  v1::CacheStats wrong = Report(200);
  wrong.set_stalled(true);
  wrong.set_cold_degraded(true);
  history.Add(wrong);
  const TopView view = history.View("a-server-with-a-rather-long-name.example:50051");
  for (const bool color : {false, true}) {
    for (int rows = 1; rows < 40; ++rows) {
      for (int columns = 1; columns < 200; columns += 7) {
        const auto lines = DrawTop(view, {rows, columns}, {color, true, true});
        ASSERT_LE(static_cast<int>(lines.size()), rows);
        for (const std::string& line : DrawTop(view, {rows, columns}, kPlain)) {
          ASSERT_LE(CellsOf(line), columns) << line;
        }
      }
    }
  }
  // What is wrong comes before all else.
  EXPECT_THAT(DrawTop(view, {2, 80}, kPlain),
              testing::ElementsAre(HasSubstr("SOMETHING IS WRONG"), HasSubstr("makes no step")));
}

TEST(TopFrameTest, ColorsAreSwitchedOffAgain) {
  for (const std::string& line : DrawTop(History(20).View("x"), {24, 80}, {true, true, true})) {
    const size_t last = line.rfind("\033[");
    if (last == std::string::npos) continue;
    EXPECT_EQ(line.substr(last, 4), "\033[0m") << line;
  }
  EXPECT_THAT(DrawTop(History(20).View("x"), {24, 80}, kPlain), Each(Not(HasSubstr("\033"))));
}

TEST(TopFrameTest, AsciiWhereTheLocaleHasNoMore) {
  for (const std::string& line : DrawTop(History(20).View("x"), {24, 80}, {false, false, true})) {
    for (const char c : line) ASSERT_GE(c, 0x20) << line;
  }
}

TEST(TopFrameTest, TextFromTheServerCannotDriveTheTerminal) {
  StatsHistory history = History(2);
  v1::CacheStats stats = Report(2);
  stats.set_model("\033[2Jevil\n");
  stats.mutable_tiers(0)->set_layout("\007x");
  history.Add(stats);
  TopView view = history.View("y");
  view.lost = "gone\r\033c";
  const auto lines = DrawTop(view, {24, 80}, kPlain);
  EXPECT_THAT(lines, Each(AllOf(Not(HasSubstr("\033")), Not(HasSubstr("\007")),
                                Not(HasSubstr("\r")), Not(HasSubstr("\n")))));
  EXPECT_THAT(lines.front(), HasSubstr("NO CONNECTION"));
  EXPECT_THAT(lines, Contains(HasSubstr("gone??c; trying again")));
}

TEST(TopFrameTest, TiersThatAreNotThereSaySo) {
  StatsHistory history;
  for (int i = 0; i < 2; ++i) {
    v1::CacheStats stats = Report(i);
    stats.mutable_tiers(2)->Clear();
    stats.mutable_tiers(2)->set_tier(v1::TIER_COLD);
    stats.mutable_tiers(2)->set_layout("none");
    history.Add(stats);
  }
  const auto lines = DrawTop(history.View("x"), {24, 80}, kPlain);
  EXPECT_THAT(lines, Contains(testing::MatchesRegex("cold +none +none")));
  EXPECT_THAT(lines, Not(Contains(HasSubstr("DISK"))));
}

TEST(BarTest, PartsAreInProportion) {
  EXPECT_EQ(Bar({5, 8, 10}, 10, false), "#####===..");
  EXPECT_EQ(Bar({0, 0, 10}, 4, false), "....");
  EXPECT_EQ(Bar({20, 30, 10}, 4, false), "####");
  EXPECT_EQ(Bar({1, 1, 0}, 4, false), "....");
  EXPECT_EQ(CellsOf(Bar({3.3, 7.1, 10}, 9, true)), 9);
  EXPECT_THAT(Bar({0.2, 0.2, 10}, 10, true), testing::StartsWith("▏"));  // a little is seen
}

TEST(SparklineTest, ShowsTheLatestOnAScaleOfTheirOwn) {
  EXPECT_EQ(Sparkline({0, 1, 2}, 3, true), "▁▅█");
  EXPECT_EQ(Sparkline({9, 9, 0, 2}, 2, true), "▁█");
  EXPECT_EQ(Sparkline({}, 3, true), "   ");
  EXPECT_EQ(Sparkline({0, 0}, 3, false), " __");
  EXPECT_EQ(Sparkline({1}, 0, true), "");
}

}  // namespace
}  // namespace strata::cli
