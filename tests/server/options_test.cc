#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/config/format_name.h"
#include "server/config/load_options.h"
#include "server/config/option_table.h"
#include "server/config/option_values.h"
#include "tests/testing/test_folder.h"

namespace strata {
namespace {

using testing::HasSubstr;

class ConfigFile {
 public:
  explicit ConfigFile(const std::string& text) : path_(folder_.Put("strata.yaml", text)) {}
  const std::string& path() const { return path_; }

 private:
  const TestFolder folder_;
  const std::string path_;
};

ServerOptions Load(const std::vector<std::string>& arguments, const Environment& environment = {}) {
  std::vector<std::string> all = {"--model=m.gguf"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  const auto loaded = LoadOptions(all, environment);
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  return loaded.ok() ? loaded->options : ServerOptions();
}

std::string ErrorOf(const std::vector<std::string>& arguments,
                    const Environment& environment = {}) {
  std::vector<std::string> all = {"--model=m.gguf"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  const auto loaded = LoadOptions(all, environment);
  EXPECT_TRUE(absl::IsInvalidArgument(loaded.status()));
  return std::string(loaded.status().message());
}

TEST(OptionsTest, AFlagWinsOverEnvironmentOverFileOverDefault) {
  const ConfigFile file("queue-max: 1\nmax-sequences: 2\nthreads: 3\n");
  const Environment environment = {"STRATA_CONFIG=" + file.path(), "STRATA_QUEUE_MAX=10",
                                   "STRATA_MAX_SEQUENCES=20", "PATH=/bin"};
  const ServerOptions options = Load({"--queue-max=100"}, environment);
  EXPECT_EQ(options.limits.queue_max, 100);
  EXPECT_EQ(options.limits.max_sequences, 20);
  EXPECT_EQ(options.device.threads, 3);
  EXPECT_EQ(options.limits.max_batch_tokens, 320);
}

TEST(OptionsTest, UnknownNamesAreErrorsThatNameThem) {
  EXPECT_THAT(ErrorOf({"--hot-byte=3"}), HasSubstr("--hot-byte"));
  EXPECT_THAT(ErrorOf({"stray"}), HasSubstr("stray"));
  EXPECT_THAT(ErrorOf({}, {"STRATA_HOTBYTES=3"}), HasSubstr("STRATA_HOTBYTES"));
  const ConfigFile file("queue-max: 1\nhot_bytes: 3\n");
  const std::string error = ErrorOf({"--config=" + file.path()});
  EXPECT_THAT(error, HasSubstr("'hot_bytes'"));
  EXPECT_THAT(error, HasSubstr(file.path() + ":2"));
}

TEST(OptionsTest, WrongValuesAreErrorsThatNameTheirSource) {
  EXPECT_THAT(ErrorOf({"--hot-bytes=3x"}),
              testing::AllOf(HasSubstr("flag --hot-bytes"), HasSubstr("'3x'")));
  EXPECT_THAT(ErrorOf({}, {"STRATA_THREADS=-1"}),
              testing::AllOf(HasSubstr("STRATA_THREADS"), HasSubstr("0 to 1024")));
  const ConfigFile file("log-format: xml\n");
  EXPECT_THAT(ErrorOf({"--config", file.path()}),
              testing::AllOf(HasSubstr("log-format"), HasSubstr("text, json")));
  EXPECT_THAT(ErrorOf({"--device=gpu"}), HasSubstr("auto, cpu, cuda or cuda:N"));
  EXPECT_THAT(ErrorOf({"--device=cuda:-1"}), HasSubstr("0 to 63"));
  EXPECT_THAT(ErrorOf({"--device=cpu", "--warm-attention=host"}), HasSubstr("'host' needs a GPU"));
  EXPECT_THAT(ErrorOf({"--device=cpu", "--gather-bytes=1MiB"}), HasSubstr("needs a GPU"));
  EXPECT_THAT(ErrorOf({"--warm-attention=host", "--gather-bytes=1MiB"}),
              HasSubstr("warm-attention is host"));
  EXPECT_THAT(ErrorOf({"--queue-max=1", "--queue-max=2"}), HasSubstr("queue-max"));
}

TEST(OptionsTest, FilesThatAreNoMappingAreErrors) {
  EXPECT_THAT(ErrorOf({"--config=/nonexistent/file"}), HasSubstr("/nonexistent/file"));
  EXPECT_THAT(ErrorOf({"--config=/proc"}), HasSubstr("cannot read /proc"));
  EXPECT_THAT(ErrorOf({"--config=/dev/zero"}), HasSubstr("/dev/zero has more than 1048576 bytes"));
  const ConfigFile twice("queue-max: 1\nqueue-max: 2\n");
  EXPECT_THAT(ErrorOf({"--config=" + twice.path()}), HasSubstr("twice"));
}

TEST(OptionsTest, FilesWithListsOrBrokenYamlAreErrors) {
  const ConfigFile nested("queue-max: [1, 2]\n");
  EXPECT_THAT(ErrorOf({"--config=" + nested.path()}), HasSubstr("queue-max"));
}

TEST(OptionsTest, BrokenYamlIsAnError) {
  const ConfigFile broken("queue-max: }\n");
  EXPECT_THAT(ErrorOf({"--config=" + broken.path()}), HasSubstr(broken.path()));
}

TEST(OptionsTest, DeepYamlIsAnError) {
  const ConfigFile deep("queue-max: " + std::string(100'000, '['));
  EXPECT_THAT(ErrorOf({"--config=" + deep.path()}), HasSubstr(deep.path()));
}

// Whatever a file holds: options, or an error that names a source.
TEST(OptionsTest, DamagedFilesNeverCrash) {
  const std::string good =
      "# ours\nqueue-max: 1\nhot-bytes: 2GiB\n'cold-layers': \"0:k4v2,1-3:i2\"\n"
      "drain-timeout: 1500ms\nplaintext-tokens: true\nmodel-name: |\n  two\n  lines\n";
  constexpr char kSyntax[] = "{}[]:,&*!|>%@`'\"#-?\n\t \x00\xFF~<=.019e";
  std::mt19937 random(20250106);
  int loaded = 0;
  constexpr int kRounds = 3000;
  for (int round = 0; round < kRounds; ++round) {
    std::string text = good;
    for (uint32_t i = 0; i <= random() % 4; ++i) {
      char& byte = text[random() % text.size()];
      byte = random() % 2 != 0 ? kSyntax[random() % (sizeof(kSyntax) - 1)]
                               : static_cast<char>(byte ^ (1 << random() % 8));
    }
    const ConfigFile file(text);
    const auto options = LoadOptions({"--model=m.gguf", "--config=" + file.path()}, {});
    if (options.ok()) ++loaded;
    EXPECT_TRUE(options.ok() || absl::IsInvalidArgument(options.status())) << options.status();
  }
  // Both must occur often, or the loop tests nothing.
  EXPECT_GT(loaded, kRounds / 20);
  EXPECT_LT(loaded, kRounds * 19 / 20);
}

TEST(OptionsTest, OptionsAreHeldAgainstEachOther) {
  EXPECT_TRUE(absl::IsInvalidArgument(LoadOptions({}, {}).status()));  // no model
  EXPECT_THAT(ErrorOf({"--cold-bytes=1GiB"}), HasSubstr("cold-path"));
  EXPECT_THAT(ErrorOf({"--listen=localhost"}), HasSubstr("HOST:PORT"));
  EXPECT_THAT(ErrorOf({"--listen=localhost:99999"}), HasSubstr("65535"));
  EXPECT_THAT(ErrorOf({"--piece-tokens=100"}), HasSubstr("multiple of 64"));
  EXPECT_THAT(ErrorOf({"--hot-window=64"}), HasSubstr("hot-window"));  // below a piece
  EXPECT_THAT(ErrorOf({"--sink-tokens=0"}), HasSubstr("sink-tokens"));
  EXPECT_THAT(ErrorOf({"--max-batch-tokens=270"}), HasSubstr("271"));
  EXPECT_THAT(ErrorOf({"--cold-layers=2-4:i2,4:i4"}), HasSubstr("overlaps"));
}

TEST(OptionsTest, TokensDoNotCrossTheNetworkInPlainText) {
  const std::string token = "--token-file=t";
  const std::string everywhere = "--listen=0.0.0.0:1";
  EXPECT_THAT(ErrorOf({token, everywhere}), HasSubstr("plain text"));
  EXPECT_THAT(ErrorOf({"--cache-token-file=t", "--listen=127.host:1"}), HasSubstr("plain text"));
  Load({token});
  Load({token, "--listen=127.1.2.3:1"});
  Load({token, "--listen=[::1]:1"});
  Load({token, everywhere, "--plaintext-tokens"});
  Load({token, everywhere, "--tls-cert=c", "--tls-key=k"});
}

TEST(OptionsTest, TlsOptionsComeTogether) {
  EXPECT_THAT(ErrorOf({"--tls-cert=c"}), HasSubstr("tls-key"));
  EXPECT_THAT(ErrorOf({"--tls-client-ca=c"}), HasSubstr("tls-client-ca"));
  EXPECT_THAT(ErrorOf({"--health-listen=8080"}), HasSubstr("health-listen"));
  EXPECT_THAT(ErrorOf({"--max-message-bytes=2GiB"}), HasSubstr("1073741824"));
  EXPECT_THAT(ErrorOf({"--max-metadata-bytes=1"}), HasSubstr("4096"));
}

TEST(OptionsTest, ASwitchNeedsNoValue) {
  EXPECT_TRUE(Load({"--plaintext-tokens"}).security.plaintext_tokens);
  EXPECT_FALSE(Load({"--plaintext-tokens=false"}).security.plaintext_tokens);
  EXPECT_FALSE(Load({}).security.plaintext_tokens);
}

TEST(OptionsTest, SpecialValuesAreUnderstood) {
  const ServerOptions options =
      Load({"--hot-bytes=auto", "--warm-bytes=1.5GiB", "--hot-window=unlimited",
            "--warm-window=512", "--drain-timeout=1500ms", "--warm-format=k4v2",
            "--cold-layers=0:k4v2,1-3:i2", "--disk-write-rate=10MB"});
  EXPECT_FALSE(options.cache.hot_bytes.has_value());
  EXPECT_EQ(options.cache.warm_bytes, 1610612736u);
  EXPECT_EQ(options.cache.hot_window, ServerOptions::kEndlessWindow);
  EXPECT_EQ(options.cache.warm_window, 512);
  EXPECT_EQ(options.listen.drain_timeout, std::chrono::milliseconds(1500));
  EXPECT_EQ(options.cache.warm_format, (TensorKinds{KvKind::kI4, KvKind::kI2}));
  ASSERT_EQ(options.cache.cold_layers.size(), 2u);
  EXPECT_EQ(options.cache.cold_layers[1].last, 3);
  EXPECT_EQ(options.cache.disk_write_rate, 10000000u);
}

TEST(OptionsTest, ThePrintedConfigurationCanBeFedBack) {
  const auto first = LoadOptions({"--model=a b: c.gguf", "--hot-bytes=3MiB", "--warm-window=640",
                                  "--cold-layers=1-2:i4", "--model-name=#x"},
                                 {"STRATA_LOG_LEVEL=warn"});
  ASSERT_TRUE(first.ok()) << first.status();
  const ConfigFile file(PrintOptions(*first));
  const auto second = LoadOptions({"--config=" + file.path()}, {});
  ASSERT_TRUE(second.ok()) << second.status();
  for (const OptionSpec& spec : OptionTable()) {
    EXPECT_EQ(spec.get(first->options), spec.get(second->options)) << spec.name;
  }
  EXPECT_EQ(second->options.model.path, "a b: c.gguf");
  EXPECT_EQ(second->options.cache.hot_bytes, 3u << 20);
  EXPECT_THAT(PrintOptions(*first), HasSubstr("STRATA_LOG_LEVEL"));
}

TEST(OptionsTest, EveryDefaultIsAValueOfItsOption) {
  for (const OptionSpec& spec : OptionTable()) {
    ServerOptions options;
    const std::string initial = spec.get(options);
    EXPECT_TRUE(spec.set(initial, &options).ok()) << spec.name << " = " << initial;
    EXPECT_EQ(spec.get(options), initial) << spec.name;
  }
}

TEST(OptionsTest, TheHelpPageTellsOfEverything) {
  const std::string page = "\n" + HelpPage();
  for (const char* section : {"NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "FILES", "ENVIRONMENT",
                              "SIGNALS", "EXIT STATUS", "EXAMPLES"}) {
    EXPECT_THAT(page, HasSubstr(std::string("\n") + section + "\n")) << section;
  }
  for (const OptionSpec& spec : OptionTable()) {
    EXPECT_THAT(page, HasSubstr("--" + spec.name)) << spec.name;
  }
  EXPECT_EQ(LoadOptions({"--help"}, {"STRATA_X=1"})->command, Command::kHelp);
}

TEST(OptionValuesTest, SizesAndTimesAreReadBackAsWritten) {
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{1}, uint64_t{1000}, uint64_t{1} << 10,
                               uint64_t{3} << 20, uint64_t{5} << 40}) {
    EXPECT_EQ(*ParseSize(FormatSize(bytes)), bytes);
  }
  EXPECT_EQ(FormatSize(uint64_t{64} << 20), "64MiB");
  EXPECT_EQ(*ParseSize("1KiB"), 1024u);
  EXPECT_EQ(*ParseSize("2kb"), 2000u);
  EXPECT_EQ(*ParseSize("0.5TiB"), uint64_t{512} << 30);
  for (const char* wrong : {"", "MiB", "-1", "+1", " 1", "1e3", "1 MiB ", "1.2.3KB", "9EiB", "nan",
                            "infB", "0x10", "99999999TiB", "1048576TiB", "1152921504606846976",
                            "18446744073709551615", "18446744073709551616"}) {
    EXPECT_FALSE(ParseSize(wrong).ok()) << wrong;
  }
  EXPECT_FALSE(ParseSize(std::string(400, '9') + "B").ok());  // no double is that large
  EXPECT_EQ(*ParseSize("1152921504606846975"), (uint64_t{1} << 60) - 1);
  for (const char* time : {"0s", "250ms", "30s", "2m", "1h"}) {
    EXPECT_EQ(FormatDuration(*ParseDuration(time)), time);
  }
  for (const char* wrong : {"", "5", "-5s", "s", "1e9s", "9999999h", "nans", "infs"}) {
    EXPECT_FALSE(ParseDuration(wrong).ok()) << wrong;
  }
  EXPECT_FALSE(ParseDuration(std::string(400, '9') + "h").ok());
}

TEST(FormatNameTest, NamesAreReadBackAsWritten) {
  for (const char* name : {"f16", "i4", "i2", "k4v2", "k16v4", "k2v16"}) {
    EXPECT_EQ(FormatName(*ParseFormatName(name)), name);
  }
  for (const char* wrong : {"", "i8", "k4", "kv", "k4v3", "F16"}) {
    EXPECT_FALSE(ParseFormatName(wrong).ok()) << wrong;
  }
}

TEST(FormatNameTest, MixedTiersNameTheCommonestFirst) {
  TierOptions options;
  options.formats = TierFormats::Uniform(6, {KvKind::kI4, KvKind::kI4}, {KvKind::kI2, KvKind::kI2});
  options.formats.KeepK(2, {});
  options.warm_bytes = 1;
  options.cold_bytes = 1;
  EXPECT_EQ(TierFormatName(options, Tier::kHot), "f16");
  EXPECT_EQ(TierFormatName(options, Tier::kWarm), "i4");
  EXPECT_EQ(TierFormatName(options, Tier::kCold), "i2+k4v2");
  options.cold_bytes = 0;
  EXPECT_EQ(TierFormatName(options, Tier::kCold), "none");
}

}  // namespace
}  // namespace strata
