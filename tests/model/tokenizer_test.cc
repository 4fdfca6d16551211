// The tokenizers on small made-up vocabularies: against slow versions of the same rules, and
// against metadata that cannot be right.

#include "model/tokenizer.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/bpe_alphabet.h"
#include "model/gguf_file.h"
#include "model/unicode.h"
#include "tests/model/gguf_builder.h"
#include "tests/testing/test_folder.h"

namespace strata {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kByte = 6;

// What a test's file says; each test changes what it is about.
struct Metadata {
  std::string model = "gpt2";
  std::string pre = "gpt-2";
  std::vector<std::string> tokens;
  std::vector<int32_t> kinds;
  std::vector<float> scores;
  std::vector<std::string> merges;
  std::map<std::string, uint32_t> ids;
  std::map<std::string, bool> flags;

  int32_t Add(const std::string& text, int kind = kNormal, float score = 0) {
    tokens.push_back(text);
    kinds.push_back(kind);
    scores.push_back(score);
    return static_cast<int32_t>(tokens.size()) - 1;
  }
};

absl::StatusOr<std::unique_ptr<Tokenizer>> Create(const Metadata& metadata) {
  GgufBuilder builder;
  builder.String("general.architecture", "llama");
  if (!metadata.model.empty()) builder.String("tokenizer.ggml.model", metadata.model);
  if (!metadata.pre.empty()) builder.String("tokenizer.ggml.pre", metadata.pre);
  builder.Strings("tokenizer.ggml.tokens", metadata.tokens);
  if (!metadata.kinds.empty()) builder.I32s("tokenizer.ggml.token_type", metadata.kinds);
  if (!metadata.scores.empty()) builder.F32s("tokenizer.ggml.scores", metadata.scores);
  if (metadata.model == "gpt2") builder.Strings("tokenizer.ggml.merges", metadata.merges);
  for (const auto& [key, id] : metadata.ids) builder.U32("tokenizer.ggml." + key, id);
  for (const auto& [key, flag] : metadata.flags) builder.Bool("tokenizer.ggml." + key, flag);
  const TestFolder folder;
  const auto file = GgufFile::Open(folder.Put("tokenizer.gguf", builder.Build()));
  EXPECT_TRUE(file.ok()) << file.status();
  return Tokenizer::Create(**file);
}

std::unique_ptr<Tokenizer> MustCreate(const Metadata& metadata) {
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Create(metadata);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

std::vector<TokenSpan> Encode(const Tokenizer& tokenizer, const std::string& text,
                              const EncodeOptions& options = {}) {
  auto spans = tokenizer.Encode(text, options);
  EXPECT_TRUE(spans.ok()) << spans.status();
  return *std::move(spans);
}

std::vector<int32_t> Ids(const std::vector<TokenSpan>& spans) {
  std::vector<int32_t> ids;
  for (const TokenSpan& span : spans) ids.push_back(span.id);
  return ids;
}

std::vector<std::string> Extents(const std::vector<TokenSpan>& spans) {
  std::vector<std::string> extents;
  for (const TokenSpan& span : spans) extents.push_back(absl::StrCat(span.start, "-", span.end));
  return extents;
}

uint32_t Next(uint32_t* state) {
  *state = *state * 1664525u + 1013904223u;
  return *state >> 16;
}

Metadata BytesVocabulary() {
  Metadata metadata;
  for (int byte = 0; byte < 256; ++byte) {
    metadata.Add(std::string(BpeByteCharacter(static_cast<uint8_t>(byte))));
  }
  return metadata;
}

void AddMerge(const std::string& left, const std::string& right, Metadata* metadata) {
  metadata->merges.push_back(left + " " + right);
  metadata->Add(left + right);
}

// ---- byte-level BPE --------------------------------------------------------------------------

TEST(BpeTokenizerTest, AlphabetIsReversible) {
  for (int byte = 0; byte < 256; ++byte) {
    const auto character = BpeByteCharacter(static_cast<uint8_t>(byte));
    EXPECT_EQ(BpeTextToBytes(character), std::string(1, static_cast<char>(byte)));
  }
  EXPECT_EQ(BpeByteCharacter(' '), "\xC4\xA0");  // U+0120, GPT-2's mark of a space
  EXPECT_EQ(BpeTextToBytes("\xE4\xBD\xA0"), "\xE4\xBD\xA0");
}

// Merges as the rule is stated, a whole pass over the symbols each time.
std::vector<std::string> SlowBpe(const std::string& word, const std::vector<std::string>& merges) {
  std::vector<std::string> symbols;
  for (const char byte : word) symbols.push_back(std::string(1, byte));
  for (;;) {
    size_t best_rank = merges.size();
    size_t best_at = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto found = std::find(merges.begin(), merges.end(), symbols[i] + " " + symbols[i + 1]);
      const size_t rank = static_cast<size_t>(found - merges.begin());
      if (rank < best_rank) {
        best_rank = rank;
        best_at = i;
      }
    }
    if (best_rank == merges.size()) return symbols;
    symbols[best_at] += symbols[best_at + 1];
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best_at) + 1);
  }
}

TEST(BpeTokenizerTest, MergesLikeTheSlowRule) {
  uint32_t state = 11;
  for (int round = 0; round < 20; ++round) {
    Metadata metadata = BytesVocabulary();
    std::vector<std::string> known = {"a", "b", "c"};
    while (metadata.merges.size() < 25) {
      const std::string left = known[Next(&state) % known.size()];
      const std::string right = known[Next(&state) % known.size()];
      if (std::find(known.begin(), known.end(), left + right) != known.end()) continue;
      if (left.size() + right.size() > 8) continue;
      AddMerge(left, right, &metadata);
      known.push_back(left + right);
    }
    const std::unique_ptr<Tokenizer> tokenizer = MustCreate(metadata);
    for (int i = 0; i < 50; ++i) {
      std::string word;
      for (uint32_t n = Next(&state) % 30; n > 0; --n) word.push_back("abc"[Next(&state) % 3]);
      std::vector<std::string> texts;
      for (const TokenSpan& span : Encode(*tokenizer, word)) {
        texts.push_back(word.substr(span.start, span.end - span.start));
        EXPECT_EQ(texts.back(), tokenizer->TokenBytes(span.id, false));
      }
      EXPECT_EQ(texts, SlowBpe(word, metadata.merges)) << word;
    }
  }
}

TEST(BpeTokenizerTest, WholeWordsGoBeforeMergesOnlyWhereTheModelSaysSo) {
  Metadata metadata = BytesVocabulary();
  AddMerge("a", "b", &metadata);
  const int32_t whole = metadata.Add("abc");  // no merge makes it
  metadata.flags["add_bos_token"] = false;
  EXPECT_THAT(Ids(Encode(*MustCreate(metadata), "abc")), ElementsAre(256, 'c'));
  metadata.pre = "llama-bpe";
  EXPECT_THAT(Ids(Encode(*MustCreate(metadata), "abc")), ElementsAre(whole));
}

TEST(BpeTokenizerTest, MissingBytesAddNothingAndBreakMerges) {
  Metadata metadata;
  const int32_t a = metadata.Add("a");
  const int32_t b = metadata.Add("b");
  AddMerge("a", "b", &metadata);
  const auto spans = Encode(*MustCreate(metadata), "azb");
  EXPECT_THAT(Ids(spans), ElementsAre(a, b));
  EXPECT_THAT(Extents(spans), ElementsAre("0-1", "2-3"));
}

TEST(BpeTokenizerTest, InvalidBytesAreTokensOfTheirOwn) {
  Metadata metadata = BytesVocabulary();
  const std::string e4(BpeByteCharacter(0xE4));
  const std::string bd(BpeByteCharacter(0xBD));
  AddMerge(e4, bd, &metadata);
  const auto tokenizer = MustCreate(metadata);
  // The merge holds inside a whole character only.
  EXPECT_EQ(Encode(*tokenizer, "\xE4\xBD\xA0").size(), 2u);
  const auto spans = Encode(*tokenizer, "x\xE4\xBDy\xFF");
  EXPECT_THAT(Extents(spans), ElementsAre("0-1", "1-2", "2-3", "3-4", "4-5"));
  EXPECT_EQ(tokenizer->Decode(Ids(spans), false), "x\xE4\xBDy\xFF");
}

// ---- special tokens --------------------------------------------------------------------------

TEST(TokenizerSpecialsTest, UserDefinedAlwaysControlOnRequestLongestFirst) {
  Metadata metadata = BytesVocabulary();
  const int32_t tag = metadata.Add("<x>", kUserDefined);
  const int32_t longer = metadata.Add("<x><y>", kUserDefined);
  const int32_t control = metadata.Add("<|end|>", kControl);
  const int32_t unknown = metadata.Add("<unk>", kUnknown);
  const auto tokenizer = MustCreate(metadata);
  EXPECT_THAT(Ids(Encode(*tokenizer, "<x><x><y><x>")), ElementsAre(tag, longer, tag));
  EXPECT_THAT(Extents(Encode(*tokenizer, "<x><x><y><x>")), ElementsAre("0-3", "3-9", "9-12"));
  EXPECT_EQ(Encode(*tokenizer, "<|end|>").size(), 7u);
  EXPECT_EQ(Encode(*tokenizer, "<unk>").size(), 5u);
  const EncodeOptions parse = {.parse_special = true};
  EXPECT_THAT(Ids(Encode(*tokenizer, "<|end|><unk>", parse)), ElementsAre(control, unknown));
  EXPECT_EQ(tokenizer->Decode({tag, control, unknown}, false), "<x>");
  EXPECT_EQ(tokenizer->Decode({tag, control, unknown}, true), "<x><|end|><unk>");
}

TEST(TokenizerSpecialsTest, BosAndEosAreAddedAsTheMetadataSays) {
  Metadata metadata = BytesVocabulary();
  const uint32_t bos = static_cast<uint32_t>(metadata.Add("<s>", kControl));
  const uint32_t eos = static_cast<uint32_t>(metadata.Add("<e>", kControl));
  metadata.ids = {{"bos_token_id", bos}, {"eos_token_id", eos}};
  EXPECT_EQ(Encode(*MustCreate(metadata), "a").size(), 1u);
  metadata.pre = "llama-bpe";  // adds BOS unless told otherwise
  EXPECT_THAT(Extents(Encode(*MustCreate(metadata), "a")), ElementsAre("0-0", "0-1"));
  metadata.flags = {{"add_bos_token", false}, {"add_eos_token", true}};
  const auto tokenizer = MustCreate(metadata);
  EXPECT_THAT(Extents(Encode(*tokenizer, "a")), ElementsAre("0-1", "1-1"));
  EXPECT_EQ(Encode(*tokenizer, "a", {.add_special = false}).size(), 1u);
  EXPECT_FALSE(tokenizer->adds_bos());
  EXPECT_EQ(tokenizer->bos_id(), static_cast<int32_t>(bos));
}

TEST(TokenizerSpecialsTest, EndOfGenerationIsWhatIsNamedAndWellKnownControlTokens) {
  Metadata metadata = BytesVocabulary();
  const int32_t eos = metadata.Add("<fin>", kControl);
  const int32_t eot = metadata.Add("<turn>", kControl);
  const int32_t im_end = metadata.Add("<|im_end|>", kControl);
  const int32_t html = metadata.Add("</s>", kUserDefined);
  metadata.ids = {{"eos_token_id", static_cast<uint32_t>(eos)},
                  {"eot_token_id", static_cast<uint32_t>(eot)}};
  const auto tokenizer = MustCreate(metadata);
  EXPECT_THAT(tokenizer->eog_ids(), ElementsAre(eos, eot, im_end));
  EXPECT_TRUE(tokenizer->IsEog(eot));
  EXPECT_FALSE(tokenizer->IsEog(html));
  EXPECT_FALSE(tokenizer->IsEog(-1));
}

// ---- SentencePiece ---------------------------------------------------------------------------

Metadata SpmVocabulary(bool with_bytes) {
  Metadata metadata;
  metadata.model = "llama";
  metadata.pre = "";
  metadata.Add("<unk>", kUnknown);
  metadata.Add("<s>", kControl);
  metadata.Add("</s>", kControl);
  for (int byte = 0; with_bytes && byte < 256; ++byte) {
    constexpr char kDigits[] = "0123456789ABCDEF";
    metadata.Add(std::string("<0x") + kDigits[byte / 16] + kDigits[byte % 16] + ">", kByte);
  }
  return metadata;
}

constexpr char kSpace[] = "\xE2\x96\x81";

TEST(SpmTokenizerTest, HighestScoreFirstThenLeftmost) {
  Metadata metadata = SpmVocabulary(true);
  metadata.flags = {{"add_space_prefix", false}, {"add_bos_token", false}};
  const int32_t a = metadata.Add("a", kNormal, -10);
  const int32_t ab = metadata.Add("ab", kNormal, -2);
  const int32_t aa = metadata.Add("aa", kNormal, -1);
  metadata.Add("b", kNormal, -10);
  const auto tokenizer = MustCreate(metadata);
  EXPECT_THAT(Ids(Encode(*tokenizer, "aab")), ElementsAre(aa, 262));
  EXPECT_THAT(Ids(Encode(*tokenizer, "aaa")), ElementsAre(aa, a));
  EXPECT_THAT(Ids(Encode(*tokenizer, "bab")), ElementsAre(262, ab));
}

std::vector<std::string> SlowSpm(const std::string& text, const Metadata& metadata) {
  std::vector<std::string> symbols;
  for (const char byte : text) symbols.push_back(std::string(1, byte));
  for (;;) {
    float best_score = -1e30f;
    size_t best_at = symbols.size();
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto found =
          std::find(metadata.tokens.begin(), metadata.tokens.end(), symbols[i] + symbols[i + 1]);
      if (found == metadata.tokens.end()) continue;
      const float score = metadata.scores[static_cast<size_t>(found - metadata.tokens.begin())];
      if (score > best_score) {
        best_score = score;
        best_at = i;
      }
    }
    if (best_at == symbols.size()) return symbols;
    symbols[best_at] += symbols[best_at + 1];
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best_at) + 1);
  }
}

TEST(SpmTokenizerTest, JoinsLikeTheSlowRule) {
  uint32_t state = 5;
  for (int round = 0; round < 20; ++round) {
    Metadata metadata = SpmVocabulary(true);
    metadata.flags = {{"add_space_prefix", false}, {"add_bos_token", false}};
    std::vector<std::string> known = {"a", "b", "c"};
    for (const std::string& letter : known) metadata.Add(letter, kNormal, -100);
    while (known.size() < 30) {
      const std::string text =
          known[Next(&state) % known.size()] + known[Next(&state) % known.size()];
      if (text.size() > 8 || std::find(known.begin(), known.end(), text) != known.end()) continue;
      metadata.Add(text, kNormal, -static_cast<float>(Next(&state) % 12));  // equal scores too
      known.push_back(text);
    }
    const auto tokenizer = MustCreate(metadata);
    for (int i = 0; i < 50; ++i) {
      std::string word;
      for (uint32_t n = Next(&state) % 30; n > 0; --n) word.push_back("abc"[Next(&state) % 3]);
      std::vector<std::string> texts;
      for (const TokenSpan& span : Encode(*tokenizer, word)) {
        texts.push_back(tokenizer->TokenBytes(span.id, false));
        EXPECT_EQ(texts.back(), word.substr(span.start, span.end - span.start));
      }
      EXPECT_EQ(texts, SlowSpm(word, metadata)) << word;
    }
  }
}

TEST(SpmTokenizerTest, SpacePrefixIsPutBeforeTextAndTakenAway) {
  Metadata metadata = SpmVocabulary(true);
  const int32_t space = metadata.Add(kSpace, kNormal, -1);
  const int32_t a = metadata.Add("a", kNormal, -1);
  const int32_t space_a = metadata.Add(std::string(kSpace) + "a", kNormal, -1);
  metadata.ids = {{"bos_token_id", 1}};
  const auto tokenizer = MustCreate(metadata);
  const auto spans = Encode(*tokenizer, "a a");
  EXPECT_THAT(Ids(spans), ElementsAre(1, space_a, space_a));
  EXPECT_THAT(Extents(spans), ElementsAre("0-0", "0-1", "1-3"));
  for (const std::string text : {"a", " a", "  a", "a ", " ", "aa a", "z", " z", ""}) {
    EXPECT_EQ(tokenizer->Decode(Ids(Encode(*tokenizer, text)), false), text);
  }
  EXPECT_THAT(Ids(Encode(*tokenizer, " a", {.add_special = false})), ElementsAre(space, space_a));
  // Text after a token in the text begins anew.
  EXPECT_THAT(Ids(Encode(*tokenizer, "a</s>a", {.add_special = false, .parse_special = true})),
              ElementsAre(space_a, 2, space_a));
  EXPECT_EQ(tokenizer->TokenBytes(space_a, false), " a");
  EXPECT_EQ(tokenizer->Decode({a, space_a}, false), "a a");
  EXPECT_EQ(tokenizer->Decode({1, space_a}, true), "<s> a");
}

TEST(SpmTokenizerTest, UnknownCharactersFallBackToBytes) {
  const auto tokenizer = MustCreate(SpmVocabulary(true));
  const EncodeOptions plain = {.add_special = false};
  const auto spans = Encode(*tokenizer, "\xC3\xA9\xFF", plain);
  // The prefix space is no piece here: its three bytes stand for nothing in the input.
  EXPECT_THAT(Ids(spans), ElementsAre(3 + 0xE2, 3 + 0x96, 3 + 0x81, 3 + 0xC3, 3 + 0xA9, 3 + 0xFF));
  EXPECT_THAT(Extents(spans), ElementsAre("0-0", "0-0", "0-0", "0-1", "1-2", "2-3"));
  EXPECT_EQ(tokenizer->TokenBytes(3 + 0xFF, false), "\xFF");
}

TEST(SpmTokenizerTest, WithoutByteTokensACharacterIsUnknown) {
  Metadata metadata = SpmVocabulary(false);
  metadata.flags = {{"add_space_prefix", false}, {"add_bos_token", false}};
  const int32_t a = metadata.Add("a", kNormal, -1);
  const auto spans = Encode(*MustCreate(metadata), "a\xE4\xBD\xA0");
  EXPECT_THAT(Ids(spans), ElementsAre(a, 0));
  EXPECT_THAT(Extents(spans), ElementsAre("0-1", "1-4"));
}

TEST(SpmTokenizerTest, TextNeverBecomesAControlOrByteToken) {
  Metadata metadata = SpmVocabulary(true);
  metadata.flags = {{"add_space_prefix", false}, {"add_bos_token", false}};
  for (const char* piece :
       {"<", "s", ">", "<s", "0", "x", "4", "1", "<0", "<0x", "<0x4", "<0x41"}) {
    metadata.Add(piece, kNormal, -1);
  }
  const auto tokenizer = MustCreate(metadata);
  EXPECT_EQ(tokenizer->Decode(Ids(Encode(*tokenizer, "<s>")), false), "<s>");
  EXPECT_EQ(tokenizer->Decode(Ids(Encode(*tokenizer, "<0x41>")), false), "<0x41>");
}

// ---- metadata that cannot be right -----------------------------------------------------------

void ExpectError(const Metadata& metadata, absl::StatusCode code, const std::string& what) {
  const absl::Status status = Create(metadata).status();
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(what));
  EXPECT_THAT(std::string(status.message()), HasSubstr(".gguf"));
}

void ExpectInvalid(const Metadata& base, const std::function<void(Metadata*)>& spoil,
                   const std::string& what) {
  Metadata metadata = base;
  spoil(&metadata);
  ExpectError(metadata, absl::StatusCode::kInvalidArgument, what);
}

TEST(TokenizerMetadataTest, UnknownModelsAndPreTokenizersAreRefusedByName) {
  Metadata metadata = BytesVocabulary();
  metadata.model = "bert";
  ExpectError(metadata, absl::StatusCode::kUnimplemented, "\"bert\"");
  metadata.model = "gpt2";
  metadata.pre = "tekken";
  ExpectError(metadata, absl::StatusCode::kUnimplemented, "\"tekken\"");
  metadata.pre = "";
  ExpectError(metadata, absl::StatusCode::kNotFound, "tokenizer.ggml.pre");
  metadata.model = "";
  ExpectError(metadata, absl::StatusCode::kNotFound, "tokenizer.ggml.model");
}

TEST(TokenizerMetadataTest, ArraysMustAgree) {
  const Metadata base = BytesVocabulary();
  ExpectInvalid(
      base, [](Metadata* m) { m->kinds.pop_back(); }, "255 types for 256 tokens");
  ExpectInvalid(
      base, [](Metadata* m) { m->kinds[7] = 7; }, "token 7 has type 7");
  ExpectInvalid(
      base, [](Metadata* m) { m->scores.pop_back(); }, "255 scores for 256 tokens");
  ExpectInvalid(
      base, [](Metadata* m) { m->scores[3] = NAN; }, "score of token 3 is NaN");
  ExpectInvalid(
      base, [](Metadata* m) { *m = Metadata{}; }, "0 tokens");
  ExpectInvalid(
      base, [](Metadata* m) { m->tokens[9] = m->tokens[4]; }, "tokens 4 and 9");
  ExpectInvalid(
      base, [](Metadata* m) { m->tokens[9] = std::string(5000, 'x'); }, "5000 bytes");
}

TEST(TokenizerMetadataTest, IdsMustBeInTheVocabulary) {
  const Metadata base = BytesVocabulary();
  for (const char* key : {"bos_token_id", "eos_token_id", "eot_token_id", "unknown_token_id"}) {
    ExpectInvalid(
        base, [&](Metadata* m) { m->ids[key] = 256; }, absl::StrCat(key, ": id 256"));
    ExpectInvalid(
        base, [&](Metadata* m) { m->ids[key] = 0xFFFFFFFF; }, "4294967295");
  }
  ExpectInvalid(
      base, [](Metadata* m) { m->flags["add_bos_token"] = true; }, "no bos_token_id");
  ExpectInvalid(
      base, [](Metadata* m) { m->flags["add_eos_token"] = true; }, "no eos_token_id");
}

TEST(TokenizerMetadataTest, MergesMustNameTokens) {
  const Metadata base = BytesVocabulary();
  const auto with_merge = [](const std::string& merge) {
    return [merge](Metadata* m) { m->merges.push_back(merge); };
  };
  ExpectInvalid(base, with_merge("ab"), "not two tokens");
  ExpectInvalid(base, with_merge(""), "not two tokens");
  ExpectInvalid(base, with_merge("xy z"), "\"xy\" is not in the vocabulary");
  ExpectInvalid(base, with_merge("x yz"), "\"yz\" is not in the vocabulary");
  ExpectInvalid(base, with_merge("x y"), "\"xy\" is not in the vocabulary");
  ExpectInvalid(
      base,
      [](Metadata* m) {
        AddMerge("x", "y", m);
        m->merges.push_back("x y");
      },
      "entry 1, \"x y\": occurs twice");
}

TEST(TokenizerMetadataTest, SentencePieceNeedsScoresAndAllByteTokensOrNone) {
  const Metadata base = SpmVocabulary(true);
  ExpectInvalid(
      base, [](Metadata* m) { m->scores.clear(); }, "scores: missing");
  ExpectInvalid(
      base, [](Metadata* m) { m->kinds[3 + 0x41] = kNormal; }, "<0x41>");
}

TEST(TokenizerMetadataTest, EmptyTextsAreHarmless) {
  Metadata metadata = BytesVocabulary();
  metadata.Add("", kControl);
  metadata.Add("", kUserDefined);
  const auto tokenizer = MustCreate(metadata);
  EXPECT_EQ(Encode(*tokenizer, "ab", {.parse_special = true}).size(), 2u);
  EXPECT_THAT(Encode(*tokenizer, ""), IsEmpty());
}

// ---- UTF-8 -----------------------------------------------------------------------------------

TEST(UnicodeTest, ExactlyTheWellFormedSequencesAreValid) {
  // Every code point but the surrogates survives; a sequence one byte short is truncated.
  for (uint32_t code_point = 0; code_point <= 0x10FFFF; ++code_point) {
    if (code_point >= 0xD800 && code_point <= 0xDFFF) continue;
    std::string text;
    AppendUtf8(code_point, &text);
    const Utf8Unit unit = NextUtf8(text);
    ASSERT_TRUE(unit.kind == Utf8Kind::kValid && unit.bytes == text.size()) << code_point;
    ASSERT_EQ(DecodeUtf8(text), code_point);
    if (text.size() == 1) continue;
    text.pop_back();
    ASSERT_EQ(NextUtf8(text).kind, Utf8Kind::kTruncated) << code_point;
  }
  // Unicode 15, section 3.9: one replacement for each maximal subpart.
  const std::pair<std::string, size_t> invalid[] = {
      {"\x80", 1},         {"\xC0\xAF", 1}, {"\xE0\x80\x80", 1}, {"\xED\xA0\x80", 1},
      {"\xF4\x91\x80", 1}, {"\xF5", 1},     {"\xE1\x80\xE2", 2}, {"\xF1\x80\x80\x41", 3},
      {"\xFF", 1},         {"\xC3(", 1}};
  for (const auto& [text, bytes] : invalid) {
    EXPECT_EQ(NextUtf8(text).kind, Utf8Kind::kInvalid) << text;
    EXPECT_EQ(NextUtf8(text).bytes, bytes) << text;
  }
}

}  // namespace
}  // namespace strata
