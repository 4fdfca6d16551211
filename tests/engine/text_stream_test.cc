// Text streaming against a search of the whole text.

#include "server/engine/text_stream.h"

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/unicode.h"

namespace strata {
namespace {

using testing::HasSubstr;

// Tokens whose bytes the test chooses; a token in `control` is a control token.
class ListTokenizer final : public Tokenizer {
 public:
  int32_t Add(const std::string& bytes, bool control = false) {
    tokens_.push_back(bytes);
    if (control) control_.insert(vocab_size() - 1);
    return vocab_size() - 1;
  }
  bool strips_first_space = false;

  absl::StatusOr<std::vector<TokenSpan>> Encode(absl::string_view,
                                                const EncodeOptions&) const override {
    return absl::UnimplementedError("no text goes in");
  }
  std::string TokenBytes(int32_t id, bool show_special) const override {
    if (id < 0 || id >= vocab_size() || (IsSpecial(id) && !show_special)) return "";
    return tokens_[static_cast<size_t>(id)];
  }
  std::string Decode(const std::vector<int32_t>& ids, bool show_special) const override {
    std::string text;
    for (const int32_t id : ids) text += TokenBytes(id, show_special);
    if (strips_first_space && absl::StartsWith(text, " ")) text.erase(0, 1);
    return text;
  }
  int32_t vocab_size() const override { return static_cast<int32_t>(tokens_.size()); }
  bool IsSpecial(int32_t id) const override { return control_.count(id) > 0; }
  bool IsEog(int32_t) const override { return false; }
  const std::vector<int32_t>& eog_ids() const override { return none_; }
  int32_t bos_id() const override { return -1; }
  bool adds_bos() const override { return false; }

 private:
  std::vector<std::string> tokens_;
  std::set<int32_t> control_;
  std::vector<int32_t> none_;
};

// What a stream of one token a piece gives: the deltas, '|' after each, '!' and the stop string.
std::string Stream(const std::vector<std::string>& pieces, const TextStreamOptions& options) {
  ListTokenizer tokenizer;
  TextStream stream(&tokenizer, options);
  std::string log;
  for (const std::string& piece : pieces) {
    const TextStream::Piece delta = stream.Push(tokenizer.Add(piece));
    log += delta.text + "|";
    if (delta.stop_matched.has_value()) log += "!" + *delta.stop_matched;
  }
  return log + stream.Finish();
}

TEST(TextStreamTest, TextFlowsWhenNothingHoldsItBack) {
  EXPECT_EQ(Stream({"Hel", "lo", " world"}, {}), "Hel|lo| world|");
}

TEST(TextStreamTest, StopBeginsInsideOneTokenAndEndsInsideAnother) {
  EXPECT_EQ(Stream({"one E", "N", "D two"}, {.stop = {"END"}}),
            "one ||"
            "|!END");
  EXPECT_EQ(Stream({"one E", "N", "D two"}, {.stop = {"END"}, .include_stop = true}),
            "one ||END|!END");
  EXPECT_EQ(Stream({"a END b"}, {.stop = {"END"}}), "a |!END");
}

TEST(TextStreamTest, WhatMightHaveBeenAStopComesOut) {
  EXPECT_EQ(Stream({"one E", "N", "E", "x"}, {.stop = {"END"}}), "one ||EN|Ex|");
  EXPECT_EQ(Stream({"one EN"}, {.stop = {"END"}}), "one |EN");
}

TEST(TextStreamTest, TheStopThatEndsFirstCountsThenTheLongest) {
  EXPECT_EQ(Stream({"xabcd"}, {.stop = {"abcd", "bc"}}), "xa|!bc");
  EXPECT_EQ(Stream({"xa", "bcd"}, {.stop = {"abcd", "bc"}}), "x|a|!bc");
  EXPECT_EQ(Stream({"xabc"}, {.stop = {"bc", "abc"}}), "x|!abc");
}

TEST(TextStreamTest, NothingComesAfterAStop) {
  EXPECT_EQ(Stream({"a.", "b.", "c"}, {.stop = {"."}}), "a|!.||");
}

TEST(TextStreamTest, CharactersAreWhole) {
  EXPECT_EQ(Stream({"\xF0\x9F", "\x98", "\x80!"}, {}), "||\xF0\x9F\x98\x80!|");
  // E4 BD could still become a character; the letter after them says that it does not.
  EXPECT_EQ(Stream({"a\xE4\xBD", "z"}, {}), "a|\xEF\xBF\xBDz|");
  EXPECT_EQ(Stream({"\xFF", "a"}, {}), "\xEF\xBF\xBD|a|");
  EXPECT_EQ(Stream({"a\xE4"}, {}), "a|\xEF\xBF\xBD");
}

TEST(TextStreamTest, StopsMayHoldCharactersThatTokensSplit) {
  EXPECT_EQ(Stream({"a\xE4", "\xBD", "\xA0\xE5\xA5",
                    "\xBD"
                    "b"},
                   {.stop = {"\xE4\xBD\xA0\xE5\xA5\xBD"}}),
            "a||||!\xE4\xBD\xA0\xE5\xA5\xBD");
}

TEST(TextStreamTest, ControlTokensAreSkippedOrShown) {
  ListTokenizer tokenizer;
  const int32_t word = tokenizer.Add("a");
  const int32_t control = tokenizer.Add("<|x|>", /*control=*/true);
  TextStream skips(&tokenizer, {});
  EXPECT_EQ(skips.Push(word).text + skips.Push(control).text + skips.Push(word).text, "aa");
  TextStream shows(&tokenizer, {.show_special = true});
  EXPECT_EQ(shows.Push(word).text + shows.Push(control).text, "a<|x|>");
  EXPECT_EQ(shows.Push(-1).text, "");
  EXPECT_EQ(shows.Push(1000).text, "");
}

TEST(TextStreamTest, TheFirstSpaceIsDroppedOnlyWhereATextStarts) {
  ListTokenizer tokenizer;
  tokenizer.strips_first_space = true;
  const int32_t word = tokenizer.Add(" a");
  const int32_t control = tokenizer.Add("<|x|>", /*control=*/true);
  TextStream goes_on(&tokenizer, {});
  EXPECT_EQ(goes_on.Push(word).text, " a");
  TextStream starts(&tokenizer, {.starts_text = true});
  EXPECT_EQ(starts.Push(control).text, "");
  EXPECT_EQ(starts.Push(word).text, "a");
  EXPECT_EQ(starts.Push(word).text, " a");
}

TEST(TextStreamTest, BeforeMinTokensAStopIsText) {
  ListTokenizer tokenizer;
  const int32_t dot = tokenizer.Add("a.");
  const int32_t half = tokenizer.Add("<e");
  const int32_t rest = tokenizer.Add("nd>");
  TextStream stream(&tokenizer, {.stop = {".", "<end>"}});
  stream.Push(dot, /*may_stop=*/false);
  stream.Push(half, /*may_stop=*/false);
  // One that began before may end now.
  const TextStream::Piece delta = stream.Push(rest);
  EXPECT_EQ(delta.stop_matched, "<end>");
  EXPECT_EQ(delta.text, "");
  TextStream other(&tokenizer, {.stop = {"."}});
  EXPECT_EQ(other.Push(dot, /*may_stop=*/false).text, "a.");
  EXPECT_EQ(other.Push(dot).stop_matched, ".");
}

TEST(TextStreamTest, StopStringsOutOfLimitsAreRefused) {
  const auto error = [](const std::vector<std::string>& stop) {
    const absl::Status status = StopSet::Check(stop);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(error({"a", ""}), HasSubstr("stop[1] is empty"));
  EXPECT_THAT(error({std::string(513, 'x')}), HasSubstr("513 bytes; at most 512"));
  EXPECT_THAT(error(std::vector<std::string>(17, "x")), HasSubstr("17 strings; at most 16"));
  EXPECT_THAT(error({"\xFF"}), HasSubstr("stop[0] is not UTF-8"));
  std::vector<std::string> most(16, "x");
  most[3] = std::string(512, 'y');
  EXPECT_TRUE(StopSet::Check(most).ok());
}

TEST(TextStreamTest, StopsThatStandInNoTextAreHarmless) {
  EXPECT_EQ(Stream({"a\xE4\xBD\xA0 b", "c"}, {.stop = {"", "\xA0", "c"}}), "a\xE4\xBD\xA0 b||!c");
}

// ---- the whole text, searched slowly ---------------------------------------------------------

uint32_t Next(uint32_t* state) {
  *state = *state * 1664525u + 1013904223u;
  return *state >> 16;
}

// Every proper prefix of a well-formed sequence, and every sequence.
struct Utf8Tables {
  std::set<std::string> whole, prefixes;
  Utf8Tables() {
    for (uint32_t code_point = 0; code_point <= 0x10FFFF; ++code_point) {
      if (code_point >= 0xD800 && code_point <= 0xDFFF) continue;
      // Of the characters above U+FFFF only those that the texts can hold whole.
      std::string sequence;
      AppendUtf8(code_point, &sequence);
      for (size_t n = 1; n < sequence.size(); ++n) prefixes.insert(sequence.substr(0, n));
      if (code_point < 0x10000 || code_point == 0x1F600) whole.insert(sequence);
    }
  }
};

struct Decoded {
  std::string certain;  // with U+FFFD for what is certainly broken
  bool incomplete = false;
};

Decoded SlowDecode(const std::string& bytes) {
  static const Utf8Tables* const tables = new Utf8Tables;
  Decoded decoded;
  for (size_t at = 0; at < bytes.size();) {
    size_t taken = 0;
    for (size_t n = 1; n <= 4 && at + n <= bytes.size(); ++n) {
      if (tables->whole.count(bytes.substr(at, n)) > 0) taken = n;
    }
    if (taken > 0) {
      decoded.certain += bytes.substr(at, taken);
      at += taken;
      continue;
    }
    size_t subpart = 1;
    for (size_t n = 1; n <= 3 && at + n <= bytes.size(); ++n) {
      if (tables->prefixes.count(bytes.substr(at, n)) == 0) continue;
      subpart = n;
      decoded.incomplete = at + n == bytes.size();
    }
    if (decoded.incomplete) return decoded;
    decoded.certain += "\xEF\xBF\xBD";
    at += subpart;
  }
  return decoded;
}

struct Expected {
  std::string text;  // given out so far
  std::optional<std::string> stop;
};

Expected SlowStream(const std::string& bytes, const TextStreamOptions& options) {
  const std::string text = SlowDecode(bytes).certain;
  for (size_t end = 1; end <= text.size(); ++end) {
    const std::string* longest = nullptr;
    for (const std::string& stop : options.stop) {
      if (!absl::EndsWith(text.substr(0, end), stop)) continue;
      if (longest == nullptr || stop.size() > longest->size()) longest = &stop;
    }
    if (longest == nullptr) continue;
    return {text.substr(0, end - (options.include_stop ? 0 : longest->size())), *longest};
  }
  size_t held = 0;
  for (const std::string& stop : options.stop) {
    for (size_t n = 1; n < stop.size(); ++n) {
      if (absl::EndsWith(text, stop.substr(0, n))) held = std::max(held, n);
    }
  }
  return {text.substr(0, text.size() - held), std::nullopt};
}

// S1 and S2 after every token, over random texts, stop strings and splits.
TEST(TextStreamTest, AgreesWithASearchOfTheWholeTextAfterEveryToken) {
  const std::vector<std::string> parts = {
      "a",    "b",    "b",    "ab",      "\xC3\xA9", "\xC3\xA8", "\xF0\x9F\x98\x80",
      "\xFF", "\xC3", "\x98", "\xE4\xBD"};
  constexpr size_t kStopParts = 7;  // only these are whole characters
  uint32_t state = 17;
  int stopped = 0;
  for (int round = 0; round < 3000; ++round) {
    TextStreamOptions options;
    options.include_stop = round % 2 == 0;
    for (uint32_t n = Next(&state) % 5; n > 0; --n) {
      std::string stop;
      for (uint32_t m = 1 + Next(&state) % 5; m > 0; --m) stop += parts[Next(&state) % kStopParts];
      options.stop.push_back(stop);
    }
    std::string bytes;
    for (uint32_t n = Next(&state) % 30; n > 0; --n) bytes += parts[Next(&state) % parts.size()];

    ListTokenizer tokenizer;
    TextStream stream(&tokenizer, options);
    std::string given;
    std::optional<std::string> stop;
    size_t at = 0;
    while (at < bytes.size() && !stop.has_value()) {
      const size_t n = std::min<size_t>(1 + Next(&state) % 6, bytes.size() - at);
      const TextStream::Piece delta = stream.Push(tokenizer.Add(bytes.substr(at, n)));
      at += n;
      ASSERT_EQ(ValidUtf8Prefix(delta.text), delta.text.size());
      given += delta.text;
      stop = delta.stop_matched;
      const Expected expected = SlowStream(bytes.substr(0, at), options);
      ASSERT_EQ(given, expected.text) << round;
      ASSERT_EQ(stop, expected.stop) << round;
    }
    stopped += stop.has_value();
    given += stream.Finish();
    const Decoded all = SlowDecode(bytes.substr(0, at));
    if (stop.has_value()) {
      EXPECT_EQ(given, SlowStream(bytes, options).text);
    } else {
      EXPECT_EQ(given, all.certain + (all.incomplete ? "\xEF\xBF\xBD" : ""));
    }
    EXPECT_EQ(stream.Finish(), "");
    EXPECT_EQ(stream.Push(0).text, "");
  }
  EXPECT_GT(stopped, 500);
  EXPECT_LT(stopped, 2500);
}

TEST(TextStreamTest, LongRepetitiveTextWithLongStopsIsLinear) {
  // Without the automaton each byte would cost 16 comparisons of up to 512 bytes.
  TextStreamOptions options;
  for (size_t i = 0; i < 16; ++i) options.stop.push_back(std::string(496 + i, 'a') + "b");
  ListTokenizer tokenizer;
  const int32_t token = tokenizer.Add("aaaaaaa");
  TextStream stream(&tokenizer, options);
  size_t given = 0;
  for (int i = 0; i < 200000; ++i) given += stream.Push(token).text.size();
  EXPECT_EQ(given, 200000u * 7 - 511);
  const TextStream::Piece last = stream.Push(tokenizer.Add("b"));
  EXPECT_EQ(last.stop_matched, options.stop[15]);
}

}  // namespace
}  // namespace strata
