// The tokenizers against llama.cpp's on a few hundred awkward texts, on real vocabularies
// (golden/make_token_golden.py).

#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "model/bpe_alphabet.h"
#include "model/gguf_file.h"
#include "model/tokenizer.h"

namespace strata {
namespace {

struct GoldenCase {
  std::string text;
  std::vector<int32_t> plain;   // control tokens' texts are text
  std::vector<int32_t> parsed;  // control tokens' texts are tokens
};

std::vector<int32_t> ReadIds(absl::string_view list) {
  std::vector<int32_t> ids;
  for (const absl::string_view number : absl::StrSplit(list, ',', absl::SkipEmpty())) {
    ids.emplace_back();
    EXPECT_TRUE(absl::SimpleAtoi(number, &ids.back())) << number;
  }
  return ids;
}

// The script writes one case a line: ["hex",[ids],[ids]].
std::vector<GoldenCase> ReadGolden(const std::string& name) {
  std::ifstream file("tests/model/golden/" + name);
  EXPECT_TRUE(file.good()) << name;
  std::vector<GoldenCase> cases;
  for (std::string line; std::getline(file, line);) {
    if (line.size() < 2) continue;
    const std::vector<std::string> parts = absl::StrSplit(line, '[');
    EXPECT_EQ(parts.size(), 4u) << line;
    const std::vector<std::string> quoted = absl::StrSplit(parts[1], '"');
    const auto ids = [](const std::string& part) {
      return ReadIds(absl::string_view(part).substr(0, part.find(']')));
    };
    cases.push_back({absl::HexStringToBytes(quoted[1]), ids(parts[2]), ids(parts[3])});
  }
  return cases;
}

std::string ModelPath(const char* variable, const std::string& name) {
  if (const char* path = std::getenv(variable)) return path;
  const char* home = std::getenv("HOME");
  return absl::StrCat(home == nullptr ? "" : home, "/.cache/strata/models/", name);
}

std::vector<int32_t> Ids(const std::vector<TokenSpan>& spans) {
  std::vector<int32_t> ids;
  for (const TokenSpan& span : spans) ids.push_back(span.id);
  return ids;
}

class GoldenTokensTest : public testing::Test {
 protected:
  // False when the model is not there.
  bool Load(const char* variable, const std::string& name) {
    const std::string path = ModelPath(variable, name);
    if (!std::ifstream(path).good()) return false;
    absl::StatusOr<std::unique_ptr<GgufFile>> file = GgufFile::Open(path);
    EXPECT_TRUE(file.ok()) << file.status();
    file_ = *std::move(file);
    absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Create(*file_);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
    return true;
  }

  std::vector<TokenSpan> Encode(const std::string& text, bool parse_special) {
    auto spans = tokenizer_->Encode(text, {.add_special = false, .parse_special = parse_special});
    EXPECT_TRUE(spans.ok()) << spans.status();
    return *std::move(spans);
  }

  // `exceptions`: texts whose plain ids are known to differ, and ours.
  void ExpectEqual(const std::string& golden,
                   const std::map<std::string, std::vector<int32_t>>& exceptions = {}) {
    const std::vector<GoldenCase> cases = ReadGolden(golden);
    EXPECT_GE(cases.size(), 400u);
    for (const GoldenCase& c : cases) {
      for (const bool parse_special : {false, true}) {
        const std::vector<TokenSpan> spans = Encode(c.text, parse_special);
        const auto exception = exceptions.find(c.text);
        const std::vector<int32_t>& plain =
            exception == exceptions.end() ? c.plain : exception->second;
        EXPECT_EQ(Ids(spans), parse_special ? c.parsed : plain)
            << '"' << absl::CHexEscape(c.text) << "\" parse_special " << parse_special << "\n got "
            << absl::StrJoin(Ids(spans), " ");
        ExpectCovered(c.text, spans);
        if (lossy_.empty()) {
          EXPECT_EQ(tokenizer_->Decode(Ids(spans), /*show_special=*/true), c.text);
        }
      }
    }
  }

  // Spans follow one another; between them are only bytes that the vocabulary has no token for.
  // Leaves in lossy_ what must make Decode differ from the text.
  void ExpectCovered(const std::string& text, const std::vector<TokenSpan>& spans) {
    lossy_ = text.find("\xE2\x96\x81") != std::string::npos && !byte_level_ ? "U+2581" : "";
    size_t at = 0;
    const auto skip_to = [&](size_t next) {
      ASSERT_LE(at, next) << absl::CHexEscape(text);
      for (; at < next; ++at) {
        EXPECT_EQ(missing_bytes_.count(static_cast<uint8_t>(text[at])), 1u)
            << absl::CHexEscape(text) << " at " << at;
        lossy_ = "missing byte";
      }
    };
    for (const TokenSpan& span : spans) {
      skip_to(span.start);
      ASSERT_LE(span.start, span.end);
      ASSERT_LE(span.end, text.size());
      at = span.end;
    }
    skip_to(text.size());
  }

  void FindMissingBytes() {
    byte_level_ = true;
    const auto texts = file_->Strings("tokenizer.ggml.tokens");
    ASSERT_TRUE(texts.ok());
    const std::set<std::string> known(texts->begin(), texts->end());
    for (int byte = 0; byte < 256; ++byte) {
      const auto character = BpeByteCharacter(static_cast<uint8_t>(byte));
      if (known.count(std::string(character)) == 0) missing_bytes_.insert(byte);
    }
  }

  std::unique_ptr<GgufFile> file_;
  std::unique_ptr<Tokenizer> tokenizer_;
  bool byte_level_ = false;
  std::set<int> missing_bytes_;
  std::string lossy_;
};

TEST_F(GoldenTokensTest, ByteLevelBpeEqualsLlamaCppOnTheDefaultModel) {
  if (!Load("STRATA_TEST_MODEL", "SmolLM2-135M-Instruct.Q4_1.gguf")) GTEST_SKIP();
  FindMissingBytes();
  ExpectEqual("tokens_smollm2.json");
}

TEST_F(GoldenTokensTest, SentencePieceEqualsLlamaCppOnGemma) {
  if (!Load("STRATA_TEST_GEMMA", "gemma3-270m.gguf")) GTEST_SKIP();
  // To Gemma </s> is an HTML tag, a user-defined token. llama.cpp takes any token of that text for
  // the control token that it is elsewhere, and so does not find it in plain text.
  ExpectEqual("tokens_gemma3.json", {{"</s>", {212}}});
}

TEST_F(GoldenTokensTest, DefaultModelsSpecialTokens) {
  if (!Load("STRATA_TEST_MODEL", "SmolLM2-135M-Instruct.Q4_1.gguf")) GTEST_SKIP();
  EXPECT_EQ(tokenizer_->vocab_size(), 49152);
  EXPECT_EQ(tokenizer_->bos_id(), 1);
  EXPECT_FALSE(tokenizer_->adds_bos());
  // <|endoftext|> by its name, <|im_end|> by its name and as eos_token_id.
  EXPECT_EQ(tokenizer_->eog_ids(), (std::vector<int32_t>{0, 2}));
  EXPECT_TRUE(tokenizer_->IsEog(2));
  EXPECT_FALSE(tokenizer_->IsEog(1));
  EXPECT_TRUE(tokenizer_->IsSpecial(1));
  EXPECT_FALSE(tokenizer_->IsSpecial(198));
  EXPECT_FALSE(tokenizer_->IsSpecial(-1));
  EXPECT_FALSE(tokenizer_->IsSpecial(49152));
  EXPECT_EQ(tokenizer_->TokenBytes(2, false), "");
  EXPECT_EQ(tokenizer_->TokenBytes(2, true), "<|im_end|>");
  EXPECT_EQ(tokenizer_->TokenBytes(49152, true), "");
  EXPECT_EQ(tokenizer_->TokenBytes(-1, true), "");
}

TEST_F(GoldenTokensTest, EveryTokenOfTheDefaultModelsTextsIsFoundAgain) {
  if (!Load("STRATA_TEST_MODEL", "SmolLM2-135M-Instruct.Q4_1.gguf")) GTEST_SKIP();
  // A token's own bytes, encoded and decoded, are those bytes, whole characters or not.
  for (int32_t id = 0; id < tokenizer_->vocab_size(); ++id) {
    const std::string bytes = tokenizer_->TokenBytes(id, /*show_special=*/true);
    ASSERT_EQ(tokenizer_->Decode(Ids(Encode(bytes, true)), true), bytes) << id;
  }
}

TEST_F(GoldenTokensTest, InvalidUtf8SurvivesTheDefaultModel) {
  if (!Load("STRATA_TEST_MODEL", "SmolLM2-135M-Instruct.Q4_1.gguf")) GTEST_SKIP();
  FindMissingBytes();
  uint32_t state = 7;
  for (int round = 0; round < 500; ++round) {
    std::string text;
    for (int i = 0; i < 40; ++i) {
      state = state * 1664525u + 1013904223u;
      text.push_back(static_cast<char>(state >> 24));
    }
    const std::vector<TokenSpan> spans = Encode(text, false);
    ExpectCovered(text, spans);
    std::string expected;
    for (const char byte : text) {
      if (missing_bytes_.count(static_cast<uint8_t>(byte)) == 0) expected.push_back(byte);
    }
    EXPECT_EQ(tokenizer_->Decode(Ids(spans), false), expected) << absl::CHexEscape(text);
  }
}

TEST_F(GoldenTokensTest, LongTextWithoutSpacesIsEncodedWhole) {
  if (!Load("STRATA_TEST_MODEL", "SmolLM2-135M-Instruct.Q4_1.gguf")) GTEST_SKIP();
  // A quadratic merge would need about 10^12 steps for each.
  for (const std::string unit : {"a", " ", "\n", "=", "7", "\xE4\xBD\xA0", "\xFF"}) {
    std::string text;
    while (text.size() < (1 << 20)) text += unit;
    const std::vector<TokenSpan> spans = Encode(text, false);
    if (unit == "\xFF") {
      EXPECT_TRUE(spans.empty());  // the vocabulary has no token for it
      continue;
    }
    EXPECT_EQ(tokenizer_->Decode(Ids(spans), false), text);
  }
}

TEST_F(GoldenTokensTest, LongTextWithoutSpacesIsEncodedWholeByGemma) {
  if (!Load("STRATA_TEST_GEMMA", "gemma3-270m.gguf")) GTEST_SKIP();
  EXPECT_EQ(tokenizer_->bos_id(), 2);
  EXPECT_TRUE(tokenizer_->adds_bos());
  for (const std::string unit : {"a", " ", "\n", "<", "\xE4\xBD\xA0", "\xFF"}) {
    std::string text;
    while (text.size() < (1 << 20)) text += unit;
    EXPECT_EQ(tokenizer_->Decode(Ids(Encode(text, false)), false), text);
  }
}

}  // namespace
}  // namespace strata
