// The pre-tokenizers against Hugging Face's tokenizers library (golden/make_pretoken_golden.py).

#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "model/pretokenizer.h"

namespace strata {
namespace {

std::unique_ptr<PreTokenizer> Create(const std::string& name) {
  const absl::StatusOr<PreTokenizerRule> rule = FindPreTokenizerRule(name);
  EXPECT_TRUE(rule.ok()) << rule.status();
  absl::StatusOr<std::unique_ptr<PreTokenizer>> made = PreTokenizer::Create(*rule);
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

std::vector<size_t> Split(const PreTokenizer& pre_tokenizer, const std::string& text) {
  std::vector<size_t> ends;
  EXPECT_TRUE(pre_tokenizer.Split(text, &ends).ok());
  return ends;
}

TEST(PreTokenizerTest, CutsAsHuggingFacesTokenizersDo) {
  std::map<std::string, std::unique_ptr<PreTokenizer>> made;
  std::ifstream file("tests/model/golden/pretokens.json");
  int cases = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.size() < 2) continue;
    const std::vector<std::string> quoted = absl::StrSplit(line, '"');
    ASSERT_EQ(quoted.size(), 5u) << line;
    auto& pre_tokenizer = made[quoted[1]];
    if (pre_tokenizer == nullptr) pre_tokenizer = Create(quoted[1]);
    const std::string text = absl::HexStringToBytes(quoted[3]);
    const size_t from = quoted[4].find('[') + 1;
    EXPECT_EQ(absl::StrJoin(Split(*pre_tokenizer, text), ","),
              quoted[4].substr(from, quoted[4].find(']') - from))
        << quoted[1] << " \"" << absl::CHexEscape(text) << '"';
    ++cases;
  }
  EXPECT_GE(cases, 1000);
  EXPECT_EQ(made.size(), 4u);
}

TEST(PreTokenizerTest, UnknownNamesAreRefusedByName) {
  const absl::Status status = FindPreTokenizerRule("default").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_NE(status.message().find("\"default\""), absl::string_view::npos) << status;
  EXPECT_NE(status.message().find("llama-bpe"), absl::string_view::npos) << status;
}

TEST(PreTokenizerTest, LongRunsAreOneWordOrAreCutInLinearTime) {
  constexpr size_t kBytes = 1 << 20;
  for (const char* name : {"gpt-2", "smollm", "llama-bpe", "qwen2"}) {
    const std::unique_ptr<PreTokenizer> pre_tokenizer = Create(name);
    for (const char* unit : {"a", " ", "\n", "=", "\xC2\xA0"}) {
      std::string text;
      while (text.size() < kBytes) text += unit;
      EXPECT_EQ(Split(*pre_tokenizer, text), std::vector<size_t>{kBytes}) << name << unit;
      // The last space goes with the word after it.
      if (*unit == ' ') {
        EXPECT_EQ(Split(*pre_tokenizer, text + "a"), (std::vector<size_t>{kBytes - 1, kBytes + 1}));
      }
    }
    EXPECT_FALSE(Split(*pre_tokenizer, std::string(kBytes, '7')).empty());
  }
}

}  // namespace
}  // namespace strata
