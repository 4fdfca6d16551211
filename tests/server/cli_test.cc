#include "gmock/gmock.h"
#include "google/protobuf/util/json_util.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "server/rpc/errors.h"
#include "tools/cli/cli_options.h"
#include "tools/cli/report.h"

namespace strata::cli {
namespace {

using testing::HasSubstr;

CliOptions Parse(const std::vector<std::string>& arguments) {
  const auto options = ParseCommandLine(arguments, "");
  EXPECT_TRUE(options.ok()) << options.status();
  return options.ok() ? *options : CliOptions();
}

TEST(CliOptionsTest, EveryFlagOfGenerateReachesTheRequest) {
  const CliOptions options = Parse({"generate",
                                    "--server=host:1",
                                    "--model=m",
                                    "--request-id=r",
                                    "--temperature=0.5",
                                    "--top-k=1",
                                    "--top-p=0.25",
                                    "--min-p=0.125",
                                    "--typical-p=0.75",
                                    "--repetition-penalty=1.5",
                                    "--repetition-window=-1",
                                    "--frequency-penalty=0.5",
                                    "--presence-penalty=-0.5",
                                    "--logit-bias=3=-2.5",
                                    "--logit-bias=4=1",
                                    "--ban=5",
                                    "--ban=6",
                                    "--seed=18446744073709551615",
                                    "-n",
                                    "9",
                                    "--min-tokens=2",
                                    "--stop=a b",
                                    "--stop=c",
                                    "--stop-token=7",
                                    "--include-stop",
                                    "--ignore-eos",
                                    "--time-limit=1500ms",
                                    "--queue-timeout=2s",
                                    "--preset=compact",
                                    "--min-format=int4",
                                    "--sink-tokens=64",
                                    "--recent-tokens=512",
                                    "--no-cold",
                                    "--logprobs",
                                    "--token-ids",
                                    "--show-special",
                                    "--stream-interval=8",
                                    "--timeout=1m",
                                    "--json",
                                    "the prompt"});
  EXPECT_EQ(options.command, Command::kGenerate);
  EXPECT_EQ(options.server, "host:1");
  EXPECT_TRUE(options.json);
  EXPECT_EQ(options.timeout, std::chrono::minutes(1));
  EXPECT_EQ(options.input_file, "");
  v1::GenerateRequest expected;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(R"({
    "request_id": "r", "model": "m", "text": "the prompt",
    "sampling": {"temperature": 0.5, "top_k": 1, "top_p": 0.25, "min_p": 0.125, "typical_p": 0.75,
                 "repetition_penalty": 1.5, "repetition_window": -1, "frequency_penalty": 0.5,
                 "presence_penalty": -0.5, "logit_bias": {"3": -2.5, "4": 1},
                 "seed": "18446744073709551615", "banned_token_ids": [5, 6]},
    "stop": {"max_tokens": 9, "min_tokens": 2, "stop": ["a b", "c"], "stop_token_ids": [7],
             "include_stop": true, "ignore_eos": true, "time_limit": "1.5s"},
    "output": {"logprobs": 0, "return_token_ids": true, "skip_special_tokens": false,
               "stream_interval": 8},
    "kv_policy": {"preset": "PRESET_COMPACT", "min_format": "KV_FORMAT_INT4", "sink_tokens": 64,
                  "recent_tokens": 512, "allow_cold": false},
    "queue_timeout": "2s"})",
                                                          &expected)
                  .ok());
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(options.generate, expected))
      << ToJson(options.generate);
}

TEST(CliOptionsTest, ThePromptComesFromOnePlace) {
  EXPECT_EQ(Parse({"generate"}).input_file, "-");
  EXPECT_EQ(Parse({"generate", "-f", "x.txt"}).input_file, "x.txt");
  const CliOptions ids = Parse({"generate", "--ids=1,2,3"});
  EXPECT_EQ(ids.input_file, "");
  EXPECT_THAT(ids.generate.token_ids().ids(), testing::ElementsAre(1u, 2u, 3u));
  EXPECT_FALSE(ParseCommandLine({"generate", "text", "-f", "x"}, "").ok());
  EXPECT_FALSE(ParseCommandLine({"generate", "text", "--ids=1"}, "").ok());
  EXPECT_FALSE(ParseCommandLine({"generate", "text", "more"}, "").ok());
}

TEST(CliOptionsTest, OtherCommands) {
  const CliOptions tokenize = Parse({"tokenize", "--no-special", "--parse-special", "text"});
  EXPECT_EQ(tokenize.command, Command::kTokenize);
  EXPECT_EQ(tokenize.tokenize.text(), "text");
  EXPECT_FALSE(tokenize.tokenize.add_special());
  EXPECT_TRUE(tokenize.tokenize.has_add_special());
  EXPECT_TRUE(tokenize.tokenize.parse_special());
  EXPECT_TRUE(Parse({"stats", "--json"}).json);
  EXPECT_EQ(Parse({"info"}).command, Command::kInfo);
  const CliOptions top = Parse({"top", "--once", "--json", "--interval=250ms"});
  EXPECT_EQ(top.command, Command::kTop);
  EXPECT_TRUE(top.once);
  EXPECT_TRUE(top.json);
  EXPECT_EQ(top.interval, std::chrono::milliseconds(250));
  EXPECT_THAT(Parse({"--help"}).help, HasSubstr("EXIT STATUS"));
  EXPECT_EQ(ParseCommandLine({"stats"}, "env:2")->server, "env:2");
  EXPECT_EQ(ParseCommandLine({"--server=flag:3", "stats"}, "env:2")->server, "flag:3");
}

TEST(CliOptionsTest, ARepeatedOptionLeavesThePromptAlone) {
  const CliOptions options =
      Parse({"generate", "--logit-bias", "3=1", "--logit-bias", "4=2", "--stop", "a", "--stop", "b",
             "--stop-token", "7", "--ban", "8", "the prompt"});
  EXPECT_EQ(options.generate.text(), "the prompt");
  EXPECT_EQ(options.generate.sampling().logit_bias_size(), 2);
  EXPECT_EQ(options.generate.stop().stop_size(), 2);
  EXPECT_EQ(Parse({"generate", "--ids", "1,2", "--ids", "3"}).generate.token_ids().ids_size(), 3);
}

TEST(CliOptionsTest, WhatIsWrongIsNamed) {
  const auto error = [](const std::vector<std::string>& arguments) {
    return std::string(ParseCommandLine(arguments, "").status().message());
  };
  EXPECT_THAT(error({"generate", "--tempereture=1", "x"}), HasSubstr("--tempereture"));
  EXPECT_THAT(error({"generate", "--top-k=-1", "x"}), HasSubstr("--top-k"));
  EXPECT_THAT(error({"generate", "--preset=tiny", "x"}), HasSubstr("'tiny'"));
  EXPECT_THAT(error({"generate", "--min-format=f32", "x"}), HasSubstr("'f32'"));
  EXPECT_THAT(error({"generate", "--time-limit=5", "x"}), HasSubstr("'5'"));
  EXPECT_THAT(error({"generate", "--logit-bias=x=1", "x"}), HasSubstr("'x=1'"));
  EXPECT_THAT(error({"frobnicate"}), testing::Not(testing::IsEmpty()));
  EXPECT_THAT(error({}), testing::Not(testing::IsEmpty()));
}

TEST(ReportTest, TheSummaryShowsTiersLinksAndSpeed) {
  v1::GenerateResult result;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(R"({
    "choices": [{"reason": "FINISH_REASON_LENGTH"}],
    "usage": {"prompt_tokens": 100, "completion_tokens": 11},
    "effective_policy": {"sink_tokens": 64, "recent_tokens": 256, "warm_tokens": 4294967295},
    "kv": {"tiers": [{"tier": "TIER_HOT", "layout": "f16", "tokens": "64", "pages": "30",
                      "bytes": "1048576", "peak_bytes": "2097152", "bits_per_value": 16}],
           "links": [{"from": "TIER_COLD", "to": "TIER_HOT", "bytes": "100",
                      "bytes_f16_equivalent": "400", "pages": "5", "wait": "0.25s"}]},
    "timing": {"prefill": "2s", "time_to_first_token": "2.5s", "decode": "5s"}})",
                                                          &result)
                  .ok());
  const std::string report = SummaryReport(result);
  for (const char* part : {"first 64 and latest 256 tokens hot, all before them warm", "1.0 MiB",
                           "2.0 MiB", "16.00", "cold>hot", "75.0 %", "0.250 s", "50.0 tokens/s",
                           "2.0 tokens/s", "first after 2.500 s", "ended by length"}) {
    EXPECT_THAT(report, HasSubstr(part));
  }
}

TEST(ReportTest, ErrorsShowCodeMessageAndDetails) {
  const std::string quota = ErrorReport(rpc::DescribeEngineError(
      absl::ResourceExhaustedError("QUEUE_FULL: busy"), {{"queue", "2 of 2"}}));
  for (const char* part : {"RESOURCE_EXHAUSTED: QUEUE_FULL: busy", "queue: 2 of 2",
                           "reason: QUEUE_FULL", "try again in 1 s"}) {
    EXPECT_THAT(quota, HasSubstr(part));
  }
  EXPECT_EQ(ErrorReport(rpc::InvalidField("stop.max_tokens", "0 is too few")),
            "INVALID_ARGUMENT\n  stop.max_tokens: 0 is too few\n");
}

TEST(ReportTest, TokensAreShownEscaped) {
  v1::TokenizeResponse response;
  response.add_tokens()->set_bytes("\n\"\xFF");
  response.set_count(1);
  EXPECT_THAT(TokensReport(response), HasSubstr(R"("\n\"\377")"));
}

}  // namespace
}  // namespace strata::cli
